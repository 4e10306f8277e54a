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
