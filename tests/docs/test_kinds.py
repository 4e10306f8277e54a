"""Each page of the documentation keeps to the rights of its kind, which docs/contributing/index.md lists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("tutorials", "guides", "reference", "tasks", "concepts", "contributing")
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [*PAGES, *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
WRITTEN.append(ROOT / "bench/README.md")
CHART = ROOT / "charts/torchtally/README.md"
GENERATED = re.compile(r"<!-- tools/reference\.py: .*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
AVOIDED = ["please", "simply", "easily", r"e\.g\.", r"i\.e\.", r"etc\.", "via", "utilize", "in order to", "will", "we"]
HOUSE_WORDS = ["doubled", "made anew", "goes on", "go on", "the claim", "its claim", "that lacks", "of a user's own"]


def text(page: Path) -> str:
    """A page without what code writes."""
    return GENERATED.sub("", page.read_text())


def of(*kinds: str) -> list[Path]:
    return [page for page in PAGES if page.parent.name in kinds]


def name(page: Path) -> str:
    return f"{page.parent.name}/{page.stem}"


def test_each_page_has_a_kind() -> None:
    assert {page.parent.name for page in PAGES if page != DOCS / "index.md"} == set(KINDS)


def test_the_pages_are_few_and_short() -> None:
    lengths = {page: len(text(page).splitlines()) for page in WRITTEN}
    assert {name(page): length for page, length in lengths.items() if length > 260} == {}
    assert len(PAGES) <= 48
    assert sum(lengths.values()) <= 4600


@pytest.mark.parametrize("page", of("tutorials", "guides"), ids=name)
def test_a_page_of_steps_ends_in_at_most_three_next_ones(page: Path) -> None:
    *_, last = re.split(r"^## ", text(page), flags=re.MULTILINE)
    heading, *steps = [line for line in last.splitlines() if line and not line.startswith("  ")]
    assert heading == "Next steps"
    assert 1 <= len(steps) <= 3 and all(step.startswith("- ") for step in steps)


@pytest.mark.parametrize("page", of("concepts"), ids=name)
def test_an_explanation_has_no_commands(page: Path) -> None:
    assert "```console" not in text(page) and not re.search(r"^\$ ", text(page), re.MULTILINE)


@pytest.mark.parametrize("page", of("tutorials"), ids=name)
def test_a_tutorial_shows_what_each_step_prints(page: Path) -> None:
    assert sum("\n" in re.sub(r"^\$ .*(?:\\\n.*)*", "", block).strip("\n") for block in consoles(page)) >= 2


def consoles(page: Path) -> list[str]:
    return re.findall(r"```console\n(.*?)```", text(page), re.DOTALL)


@pytest.mark.parametrize("page", [*WRITTEN, CHART], ids=name)
def test_words_that_only_this_project_uses_or_that_google_avoids_stay_out(page: Path) -> None:
    prose = CODE.sub("", text(page)).lower()
    assert [word for word in HOUSE_WORDS + AVOIDED if re.search(rf"\b{word}(?!\w)", prose)] == []


@pytest.mark.parametrize("page", [*WRITTEN, CHART], ids=name)
def test_a_sentence_has_at_most_25_words(page: Path) -> None:
    long = [each for each in sentences(page) if len(re.findall(r"\S*\w\S*", each)) > 25]
    assert long == []


def sentences(page: Path) -> list[str]:
    """Its sentences, and parts of sentences between colons or semicolons: a span of code or of math is one word."""
    plain = re.sub(r"```.*?```", "\n\n", page.read_text(), flags=re.DOTALL)
    plain = re.sub(r"`[^`]+`", "code", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*] |\d+\. |(?=\|))|(?<!\\)\|", plain)
    return [" ".join(each.split()) for block in blocks for each in re.split(r"(?<=[.!?:;])[*)]*\s", block)]


def test_the_first_screen_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 100
    assert len(re.findall(r"\]\((?!#)", readme)) <= 6
    assert "make demo" in readme and "make test" in readme
