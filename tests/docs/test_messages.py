"""The table of messages has a row for each family, with an example that the code can print."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchtally import events, families
from torchtally.errors import Refused, Unproven

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trainer/torchtally"
ROWS = re.findall(
    r'^\| <a id="(t\d\d)"></a>(T\d\d) \| [^|]+ \| `([^|]+)` \| [^|]+ \|$',
    (ROOT / "docs/guides/job-failed.md").read_text(),
    re.MULTILINE,
)
# Exceptions that have a family of their own, wherever they are raised.
OF_A_KIND = {"T12": "Unproven", "T14": "Volume", "T16": "Lost", "T17": "Exhausted"}
COMMANDS = {
    "T02": (
        ["run", "--", "true"],
        {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    ),
    "T21": (["local", "-f", "job.yaml"], {}),
    "T22": (["observe", "inject", "-f", "job.yaml"], {}),
    "T23": (["jobs", "list"], {"KUBECONFIG": "none"}),
    "T24": (["verify", "pods.log"], {}),
}


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def forms(path: Path) -> list[str]:
    """Each text of a module, as a pattern of what it can become."""

    def pattern(node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return re.escape(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(map(pattern, node.values))
        return ".*"

    found = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.JoinedStr | ast.Constant)]
    return [form for each in found if len((form := pattern(each)).replace(".*", "")) > 12]


def sources(family: str) -> list[Path]:
    every = sorted(PACKAGE.rglob("*.py"))
    if kind := OF_A_KIND.get(family):
        return [path for path in every if re.search(rf"\b{kind}\(", path.read_text())]
    return [PACKAGE / "errors.py", *(path for path in every if families.of_module(module(path)) == family)]


def test_each_family_has_a_row_to_which_messages_link() -> None:
    assert [(anchor, family) for anchor, family, _ in ROWS] == [(each.lower(), each) for each in families.FAMILIES]
    assert families.with_link("no [T06]").endswith("/docs/guides/job-failed.md#t06")


@pytest.mark.parametrize(("family", "example"), [row[1:] for row in ROWS if row[1] not in COMMANDS])
def test_an_example_can_be_printed(family: str, example: str) -> None:
    assert any(re.search(form, example) for path in sources(family) for form in forms(path))


def test_each_module_that_refuses_something_has_a_family() -> None:
    raising = [path for path in PACKAGE.rglob("*.py") if re.search(r"raise Refused\(|ClusterError\(", path.read_text())]
    assert [each for each in map(module, raising) if each != "torchtally.errors" and not families.of_module(each)] == []


@pytest.mark.parametrize("family", COMMANDS)
def test_a_command_prints_its_example_once_with_a_link(family: str, tmp_path: Path) -> None:
    arguments, variables = COMMANDS[family]
    [example] = [text for _, each, text in ROWS if each == family]
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(PACKAGE.parent), "HOME": "/"}
    done = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", *arguments],
        cwd=tmp_path,
        env=path | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    [said] = [line for line in done.stderr.splitlines() if not line.startswith(events.PREFIX)]
    assert example in said and said.endswith(families.with_link(f" [{family}]"))


def test_the_id_of_a_cause_stays_and_stands_once() -> None:
    cause = Refused("a.tar has no file [T05]")
    assert str(Refused(f"rank 1: {cause}; the run ends")) == "rank 1: a.tar has no file; the run ends [T05]"
    assert str(Unproven("train epoch 1 is not proved")) == "train epoch 1 is not proved [T12]"
    assert str(Refused("of a user's own code")) == "of a user's own code"
