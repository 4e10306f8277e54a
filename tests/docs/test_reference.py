"""What the reference states about lines, codes, variables, faults, and messages is what the code and its tests have."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from metric_names import FAMILIES
from prometheus_client import Metric

from torchtally import errors, events

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "trainer/torchtally"


def page(name: str, heading: str = "") -> str:
    """The text of a page, or of one section of it."""
    text = (DOCS / name).read_text()
    return re.split(r"\n#+ ", text.partition(f"\n{heading}\n")[2])[0] if heading else text


def first_cells(text: str) -> list[str]:
    """The first cell of each row of the tables in `text`, without their headers."""
    rows = re.findall(r"^\| (?!---)(.*?) \|(?!.*\n\|[ :-]*--)", text, re.MULTILINE)
    assert rows
    return rows


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def verified(lines: str) -> tuple[int, dict]:
    command = [sys.executable, "scripts/verify_shards.py", "--json", "-"]
    ended = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=300)
    return ended.returncode, json.loads(ended.stdout)


def test_the_verifier_reads_the_example_of_a_line_and_finds_the_fields_of_the_table() -> None:
    example, _ = re.findall(r"^TORCHTALLY .*", page("reference/line.md"), re.MULTILINE)
    _, report = verified(example)
    [tally] = report["tallies"]
    assert all(
        problem.startswith("no tally line of ") or "no tally line of" in problem for problem in report["problems"]
    )
    fields = code(" ".join(first_cells(page("reference/line.md", "## Fields"))))
    assert sorted(fields) == sorted(["v", *tally])
    written = json.loads(example.removeprefix("TORCHTALLY "))
    assert set(fields) - set(written) == {
        *(
            "end",
            "sizes",
            "mixture",
            "dropped",
            "dropped_digest",
            "drawn_digest",
            "lost_indices",
            "duplicated_indices",
        )
    }
    assert len(example) < 1024


def test_the_example_of_a_last_line_proves_its_run_alone() -> None:
    _, example = re.findall(r"^TORCHTALLY .*", page("reference/line.md"), re.MULTILINE)
    code_, report = verified(example)
    assert (code_, report["problems"]) == (0, [])
    section = page("reference/line.md", "## Last line of a run")
    before, _, table = section.partition("\n| field")
    named = code(before.rpartition("Beside")[2]) + code(" ".join(first_cells(f"| field{table}")))
    written = json.loads(example.removeprefix("TORCHTALLY "))
    assert sorted(named) == sorted({*written, "caveats", "stopped"} - {"phase"})
    of_phases = next(row for row in table.splitlines() if row.startswith("| `phases`"))
    assert all(sorted(code(of_phases)[1:]) == sorted(phase) for phase in written["phases"].values())


def test_the_example_of_an_event_is_one() -> None:
    (example,) = re.findall(r"^TORCHTALLY-EVENT .*$", page("reference/events.md"), re.MULTILINE)
    assert events.read(example)


@pytest.mark.parametrize(
    ("source", "heading"),
    [
        ("pod", "## Metrics of each pod"),
        ("run", "## Metrics of the run"),
        ("observed", "## Metrics of an observed program"),
    ],
)
def test_each_metric_is_documented(source: str, heading: str) -> None:
    documented = re.findall(r"^\| `torchtally_[a-z].*", page("reference/metrics.md", heading), re.MULTILINE)
    assert documented == [*map(row_of, FAMILIES[source])]


def row_of(family: Metric) -> str:
    """A family of metrics as a table has it, with its labels."""
    suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    name = f"{family.name}{suffix}{{{','.join(labels)}}}" if labels else f"{family.name}{suffix}"
    return f"| `{name}` | {family.type} | {family.documentation} |"


def test_each_exit_code_is_documented() -> None:
    known = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert known.pop("SIGNALLED") == 128
    documented = first_cells(page("reference/exit-codes.md").partition("\n## ")[0])
    assert sorted(documented) == sorted([*map(str, known.values()), "128 + n"])


def test_each_variable_of_torchtally_is_documented() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    of_its_own = set(re.findall(r'os\.environ\["(TORCHTALLY_\w+)"\] = ', sources))  # for its ranks
    observer = "".join(path.read_text() for path in PACKAGE.with_name("torchtally_observer").rglob("*.py"))
    variable = r'"(TORCHTALLY_[A-Z_]+)"'
    of_observer = set(re.findall(variable, observer)) - {"TORCHTALLY_STACKS"}  # which the entry point sets alone
    read = set(re.findall(variable, sources)) - of_its_own | of_observer
    documented = code(" ".join(first_cells(page("reference/environment.md", "## Variables of torchtally"))))
    assert sorted(documented) == sorted(read)


FAULTS = "../bench/results/faults.md"


def faults(heading: str) -> set[tuple[str, str]]:
    rows = re.findall(r"^\| (.*?) \| (OnFailure|ExitCode) \|", page(FAULTS, heading), re.MULTILINE)
    return set(rows)


def test_the_faults_on_a_cluster_are_those_of_its_tests() -> None:
    folders = ["tests/helpers", "tests/e2e"]
    program = "import json, test_faults; print(json.dumps([(case.fault, case.policy) for case in test_faults.CASES]))"
    command = [sys.executable, "-c", f"import torch, sys; sys.path[:0] = {folders}; {program}"]  # starts as a fork
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    assert faults("## On a cluster") == set(map(tuple, json.loads(listed)))


def test_the_faults_on_one_machine_are_those_of_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/local")
    cases = importlib.import_module("test_local_faults").FAULTS
    documented = faults("## On one machine")
    assert len(documented - {(case.name, case.policy) for case in cases}) == 1  # the data, too, is of its own
    assert {(case.name, case.policy) for case in cases} <= documented
    some = sum(not case.nightly for case in cases)
    said = f"`make test` runs {some} of the {len(documented)} rows"
    assert said in " ".join(page(FAULTS, "## On one machine").split())


def said() -> str:
    """All text of the package, the scripts, and the chart, with strings that go on in the next line as one."""
    chart = ROOT / "charts/torchtally"
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    paths += [*(chart / "templates").rglob("*.tpl"), chart / "policy.yaml"]
    return re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in paths))


def quoted() -> Iterator[tuple[str, str]]:
    """Messages that pages quote from a log, each with the values in it."""
    for each in sorted(DOCS.rglob("*.md")):
        for line in re.findall(r"^(?:\[\S+\] )?torchtally: (.*)$", each.read_text(), re.MULTILINE):
            yield line, r"\S*[\d/…]\S*|\branks\b|\brpc\b"


def messages() -> Iterator[tuple[str, str]]:
    of_others = {"Bus error", "terminate called without an active exception", "field is immutable"}
    of_others |= {f'cannot get resource "{kind}"' for kind in ("roles", "pytorchjobs")}
    for cell in first_cells(page("guides/job-failed.md")):
        for each in code(cell):
            if re.search(r"[a-z] [a-z]", each) and each not in of_others and not each.startswith(("helm ", "kubectl ")):
                yield each, r"\d+|\([A-Z]+\)|demo-[\w-]+|PyTorchJob"


@pytest.mark.parametrize(("message", "values"), [*messages(), *quoted()])
def test_a_message_of_the_pages_is_one_of_ours(message: str, values: str) -> None:
    own = said()
    parts = [part.strip(" ,()…") for part in re.split(values, message)]
    assert any(parts)
    assert [part for part in parts if part not in own] == []


def test_each_room_of_the_package_is_in_the_architecture() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.stem[0] not in "_."}
    documented = code(" ".join(first_cells(page("contributing/architecture.md", "## Layers of the package"))))
    assert sorted(documented) == sorted(there)
    drawn = set(re.findall(r'class="name">(.*?)<', page("contributing/architecture.svg")))
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} <= drawn


def test_each_room_of_the_account_is_in_the_architecture() -> None:
    there = {path.stem for path in (PACKAGE / "accounting").iterdir() if path.stem[0] not in "_."}
    assert sorted(
        code(" ".join(first_cells(page("contributing/architecture.md", "## Layers of the account"))))
    ) == sorted(there)


def printed(code: str) -> str:
    """What a program prints that can import the tools."""
    return subprocess.run(
        [sys.executable, "-c", f"import torch; {code}"],  # a program that names torch starts as a fork
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_picture_of_a_step_is_as_the_code_takes_it() -> None:
    """`make docs` draws it."""
    drawn = printed("import step_picture; print(step_picture.drawn(), end='')")
    assert drawn == (DOCS / "contributing/step.svg").read_text()


def test_a_step_returns_to_no_room_between_two_calls_of_the_loop() -> None:
    """It has two calls of the account: the next batch, and `weigh`."""
    found = printed("import step_picture; print(*step_picture.rooms(step_picture.stays()))").split()
    assert found == ["account", "run", "reporting", "batches", "ledger", "account", "ledger"]


def test_each_module_of_a_run_exists() -> None:
    steps = page("contributing/architecture.md", "## A run in order")
    modules = re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*)`", "\n".join(steps.splitlines()[2:]))
    assert len(modules) > 9
    assert [module for module in modules if not (PACKAGE / f"{module}.py").exists()] == []


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    "file",
    [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"],
    ids=lambda f: f.stem,
)
def test_each_target_of_make_exists(file: Path) -> None:
    text = file.read_text()
    quoted = [
        *re.findall(r"```.*?```", text, re.DOTALL),
        *re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)),
    ]
    named = {
        word for each in quoted for run in re.findall(r"\bmake((?: [a-z][a-z0-9-]*)+)", each) for word in run.split()
    }
    assert named <= targets()
