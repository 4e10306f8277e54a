"""What the documentation states about commands, tasks, and tests is what they are."""

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench.measure import resumes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def output(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout


def torchtally(*arguments: str) -> str:
    return output("-m", "torchtally.cli", *arguments)


def tasks() -> list[str]:
    [names] = re.findall(r"Tasks: ([\w\s,-]+)\.", torchtally("--help").replace("-\n", "-"))
    return re.split(r",\s+", names)


def section(page: Path, heading: str) -> str:
    return page.read_text().partition(f"\n{heading}\n")[2].partition("\n#")[0]


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(before: str, after: str) -> list[str]:
    """The lines that differ between two examples, apart from their indentation."""
    texts = ((ROOT / "examples" / name).read_text() for name in (before, after))
    first, second = ([line.strip() for line in text.splitlines() if line.strip()] for text in texts)
    marked = difflib.unified_diff(first, second, lineterm="", n=0)
    return [line for line in marked if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]


def test_the_mend_of_the_tutorial_is_all_that_differs() -> None:
    [shown] = re.findall(r"```diff\n(.*?)```", (DOCS / "tutorials/lost-sample.md").read_text(), re.DOTALL)
    mended = [line[0] + line[1:].strip() for line in shown.splitlines()]
    docstring, *code = changed("broken/own_script.py", "without/own_script.py")
    assert docstring.startswith('-"""') and [line for line in code if '"""' not in line] == mended


def test_the_diff_of_a_script_is_that_of_the_examples() -> None:
    own = (ROOT / "examples/own_script.py").read_text()
    [shown] = re.findall(r"```diff\n(.*?)```", (DOCS / "guides/own-script.md").read_text(), re.DOTALL)
    marked = [line for line in shown.splitlines() if line.startswith(("+", "-"))]
    assert [line[0] + line[1:].strip() for line in marked] == changed("without/own_script.py", "own_script.py")
    assert [line for line in marked if line[0] == "+" and line[1:] not in own.splitlines()] == []


@pytest.mark.parametrize(
    ("heading", "script"),
    [("Lightning", "lightning_fit"), ("Hugging Face Trainer", "hf_trainer"), ("Accelerate", "accelerate_loop")],
)
def test_the_diff_of_a_library_is_that_of_its_example(heading: str, script: str) -> None:
    marked = resumes.difference(f"{script}.py")
    [shown] = re.findall(r"```diff\n(.*?)```", section(DOCS / "guides/libraries.md", f"## {heading}"), re.DOTALL)
    lines = [line for line in shown.splitlines() if line.startswith(("+", "-"))]
    assert [line[0] + line[1:].strip() for line in lines] == [line for line in marked if line[0] in "+-"]
    code = (ROOT / f"examples/{script}.py").read_text()
    same = [line.strip() for line in shown.splitlines() if line and not line.startswith(("+", "-"))]
    assert [line for line in same if "..." not in line and line not in code] == []


def test_each_task_is_in_the_list_of_tasks() -> None:
    assert set(re.findall(r"^\| \[([\w-]+)\]\(", (DOCS / "tasks/index.md").read_text(), re.MULTILINE)) == set(tasks())


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The tool that writes parts of the pages."""
    return loaded(ROOT / "tools/reference.py")


def test_the_parts_of_pages_are_what_the_code_has(reference: ModuleType) -> None:
    pages = {page: page.read_text() for page in reference.pages()}
    stale = [page.name for page, text in pages.items() if reference.written(text) != text]
    assert {page.name for page in pages} >= {"api.md", "cli.md", "events.md"}
    assert stale == [], "`make docs` writes them"


def test_each_argument_and_attribute_of_a_docstring_is_listed(reference: ModuleType) -> None:
    docstring = """It packs.

    A sample has these:

    - `ids`: the tokens,
      of a row

    Args:
        row: Number of tokens,
            from 1.

    Attributes:
        tokens: All of them.

    Example:
        >>> 1
    """
    assert reference.described(docstring).split("\n\n") == [
        "It packs.",
        "A sample has these:",
        "- `ids`: the tokens, of a row",
        "- `row`: Number of tokens, from 1.",
        "Attributes:",
        "- `tokens`: All of them.",
    ]


@pytest.fixture(scope="module")
def links() -> ModuleType:
    """The site's extension that checks links to files of the repository."""
    return loaded(DOCS / "_extensions/repository_links.py")


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](../guides/data.md#provide-data)", "[a](../guides/data.md#provide-data)"),
        ("[a](https://example.com/x.md)", "[a](https://example.com/x.md)"),
        ("[a](#here)", "[a](#here)"),
        ("[`a`](../../LICENSE)", "[`a`](https://github.com/torchtally/torchtally/blob/main/LICENSE)"),
        ("[a](../../charts)", "[a](https://github.com/torchtally/torchtally/tree/main/charts)"),
    ],
)
def test_a_link_leads_to_a_page_or_to_github(links: ModuleType, link: str, becomes: str) -> None:
    page = DOCS / "tasks/index.md"
    assert links.rewrite(f"See {link}.", page, page) == (f"See {becomes}.", [])


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("../../none.py", "there is no none.py"),
        ("../../SECURITY.md#no-such-heading", "SECURITY.md has no heading #no-such-heading"),
        ("../../../etc/passwd", "is outside of the repository"),
        ("https://github.com/torchtally/torchtally/blob/main/none.py", "there is no none.py"),
        (
            "https://github.com/torchtally/torchtally/blob/main/SECURITY.md#no-such-heading",
            "SECURITY.md has no heading #no-such-heading",
        ),
    ],
)
def test_a_broken_link_is_a_problem(links: ModuleType, link: str, problem: str) -> None:
    page = DOCS / "tasks/index.md"
    [found] = links.rewrite(f"[a]({link})", page, page)[1]
    assert found.startswith(f"docs/tasks/index.md: the link {link} is broken: ")
    assert found.endswith(problem)


def test_links_of_an_included_file_are_relative_to_it(links: ModuleType) -> None:
    markdown = "[a](docs/tasks/index.md#mnist-cnn)"
    found, problems = links.rewrite(markdown, ROOT / "README.md", DOCS / "index.md")
    assert (found, problems) == ("[a](tasks/index.md#mnist-cnn)", [])


def test_no_link_leads_nowhere(links: ModuleType) -> None:
    pages = [
        *DOCS.rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
        *ROOT.glob("*.md"),
        ROOT / "charts/torchtally/README.md",
    ]
    found = [problem for page in pages for problem in links.rewrite(page.read_text(), page, page)[1]]
    for page in pages:
        there = links.anchors(page.read_text())
        inside = re.findall(r"\]\(#([\w-]+)\)", page.read_text())
        found += [f"{page.name} has no heading #{anchor}" for anchor in inside if anchor not in there]
    assert found == []


def test_no_page_that_code_names_is_missing(links: ModuleType) -> None:
    code = [path for room in ("trainer", "charts", "scripts", "tools", "examples") for path in (ROOT / room).rglob("*")]
    found = []
    for path in code:
        if path.suffix in (".py", ".yaml", ".tpl", ".txt", ".sh") and ".venv" not in path.parts:
            for file, anchor in re.findall(r"\b(docs/[\w/.-]+\.(?:md|json|yaml))(?:#([\w-]+))?", path.read_text()):
                found += [f"{path.name}: {each}" for each in [links.problem(ROOT / file, anchor)] if each]
    assert found == []
