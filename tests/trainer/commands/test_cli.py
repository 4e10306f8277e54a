"""The command line before anything heavy is imported."""

import subprocess
import sys
from importlib.metadata import version

import pytest

pytestmark = pytest.mark.cold

HEAVY = ("torch", "numpy", "importlib.metadata")
SCRIPT = """
import sys
from torchtally import cli
try:
    cli.main(sys.argv[1:])
finally:
    print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--help"], "Tasks: fashion-mnist, "),
        (["run", "fashion-mnist", "--help"], "--contract {exact,padded,drop_last}"),
        (["evaluate", "fashion-mnist", "--help"], "--checkpoint"),
    ],
)
def test_help_is_quick(arguments: list[str], told: str) -> None:
    """By what it does without."""
    script = SCRIPT.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert told in done.stdout
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "fashion-mnist", "--lr", "0"], "argument --lr: '0' must be a number above 0"),
        (["check", "--seconds", "0"], "--seconds is 0, must be above 0"),
        (["jobs", "sttus"], "invalid choice: 'sttus'"),
        ([], "the following arguments are required: command"),
    ],
)
def test_a_mistake_is_one_sentence_and_in_a_pod_an_event(arguments: list[str], told: str) -> None:
    done = subprocess.run([sys.executable, "-m", "torchtally.cli", *arguments], capture_output=True, text=True)
    said, *event = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert told in said and "--help` lists the options [T01]" in said
    assert ['"event":"ended"' in line and told in line for line in event] == [True] * (arguments[:1] == ["run"])


def test_the_version_is_the_packages() -> None:
    done = subprocess.run([sys.executable, "-m", "torchtally.cli", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, version("torchtally") + "\n")


def test_the_package_exports_what_a_users_own_code_imports() -> None:
    script = (
        "import sys, torchtally\n"
        "assert 'torch' not in sys.modules\n"
        "from torchtally import Account, Batch, each_row, evaluate, gather_predictions\n"
        "assert {'Account', 'Batch', 'each_row', 'evaluate'} <= set(dir(torchtally))\n"
        "assert Account.__module__ == 'torchtally.accounting.account'\n"
        "try: torchtally.Acount\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "module 'torchtally' has no attribute 'Acount'\n"
