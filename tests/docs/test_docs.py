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


def options_of(usage: str) -> dict[str, str | None]:
    """Options, with their defaults, in the text that `--help` prints."""
    found = {}
    _, *parts = re.split(r"^  (?=-)", usage, flags=re.MULTILINE)
    for part in parts:
        [name] = re.findall(r"^(?:-\w.*?, )?(--[\w-]+)", part)
        default = re.search(r"\(default:?\s+([\w.]+)", part)
        found[name] = default[1] if default else None
    return {name: default for name, default in found.items() if name not in ("--help", "--version")}


def options_in(page: str) -> dict[str, str]:
    """Options in the tables of a page, with their last column."""
    rows = re.findall(r"^\| `(?:-\w [A-Z]+`, `)?(--[\w-]+).*\| (.*) \|$", page, re.MULTILINE)
    return {name: last.strip("`") for name, last in rows}


def section(page: Path, heading: str) -> str:
    return page.read_text().partition(f"\n{heading}\n")[2].partition("\n#")[0]


def same(documented: str, actual: str) -> bool:
    try:
        return float(documented) == float(actual)
    except ValueError:
        return documented.startswith(actual) or not re.fullmatch(r"[\w.]+", documented)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "guides/own-script.md"], ids=lambda page: page.name)
def test_the_diff_of_a_script_is_that_of_the_examples(page: Path) -> None:
    ordinary, own = ((ROOT / "examples" / name).read_text() for name in ("without/own_script.py", "own_script.py"))
    before, after = ([line.strip() for line in text.splitlines() if line.strip()] for text in (ordinary, own))
    changed = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))
    ]
    [shown] = re.findall(r"```diff\n(.*?)```", page.read_text(), re.DOTALL)
    marked = [line for line in shown.splitlines() if line.startswith(("+", "-"))]
    assert [line[0] + line[1:].strip() for line in marked] == changed
    assert [line for line in marked if line[0] == "+" and line[1:] not in own.splitlines()] == []


@pytest.mark.parametrize(
    ("heading", "script"),
    [("Lightning", "lightning_fit"), ("Hugging Face Trainer", "hf_trainer"), ("Accelerate", "accelerate_loop")],
)
def test_the_diff_of_a_library_is_that_of_its_example(heading: str, script: str) -> None:
    marked = resumes.difference(f"{script}.py")
    [shown] = re.findall(r"```diff\n(.*?)```", section(DOCS / "guides/libraries.md", f"## {heading}"), re.DOTALL)
    changed = [line for line in shown.splitlines() if line.startswith(("+", "-"))]
    assert [line[0] + line[1:].strip() for line in changed] == [line for line in marked if line[0] in "+-"]
    code = (ROOT / f"examples/{script}.py").read_text()
    same = [line.strip() for line in shown.splitlines() if line and not line.startswith(("+", "-"))]
    assert [line for line in same if "..." not in line and line not in code] == []


def test_each_task_has_a_page() -> None:
    assert sorted(page.stem for page in (DOCS / "tasks").glob("*.md")) == sorted(["index", *tasks()])


@pytest.mark.parametrize("task", tasks())
def test_options_of_a_task_are_documented(task: str) -> None:
    own = options_in((DOCS / f"tasks/{task}.md").read_text())
    documented = options_in(section(DOCS / "reference/cli.md", "### Options of a training")) | own
    actual = options_of(torchtally("run", task, "--help"))
    assert set(own) <= set(actual)
    assert [name for name in actual if name not in documented] == []
    wrong = {name: default for name, default in actual.items() if default and not same(documented[name], default)}
    assert wrong == {}


@pytest.mark.parametrize("script", ["run_local", "verify_shards"])
def test_options_of_a_script_are_documented(script: str) -> None:
    documented = options_in(section(DOCS / "reference/cli.md", f"### {script}.py"))
    actual = options_of(output(f"scripts/{script}.py", "--help"))
    assert set(documented) == set(actual)


def test_options_of_spark_are_documented() -> None:
    documented = options_in((DOCS / "guides/spark.md").read_text())
    assert set(documented) == set(options_of(torchtally("spark", "--help")))


@pytest.fixture(scope="module")
def links() -> ModuleType:
    """The site's extension that checks links to files of the repository."""
    spec = importlib.util.spec_from_file_location("repository_links", DOCS / "_extensions/repository_links.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    markdown = "[a](docs/tasks/index.md#results)"
    found, problems = links.rewrite(markdown, ROOT / "README.md", DOCS / "index.md")
    assert (found, problems) == ("[a](tasks/index.md#results)", [])
