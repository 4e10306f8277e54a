"""Standard output that cannot be written, or not in every character: the training and its exit code are as ever."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import launched
import proofs
import pytest
from accounts import tallies
from commands import FEW, QUICK, alone

SCRIPT = """
import sys
import torch.distributed as dist
from torchtally import Account

dist.init_process_group("gloo")
with Account(task="mine", plan={"train": 2}) as account:
    loader = account.loader(list(range(9)), "train", batch_size=2)
    for epoch in account.epochs():
        for batch in account.epoch("train", epoch, loader):
            account.commit()
            if sys.argv[1:] == ["breaks"]:
                break
dist.destroy_process_group()
"""
# How each end of a stream says that it takes nothing.
CAUSES = {"full": "No space left on device", "gone": "Broken pipe", "closed": "it is closed"}


@pytest.fixture
def two_ranks(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "PET_NPROC_PER_NODE": "2"}


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    return ["run", str(tmp_path / "script.py")]


@contextlib.contextmanager
def unwritable(how: str) -> Iterator[IO[bytes]]:
    if how == "full":
        with Path("/dev/full").open("wb") as full:
            yield full
        return
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as left:
        yield left


def ended(
    environment: dict[str, str], how: str, command: list[str], entry: str = launched.ENTRY
) -> subprocess.CompletedProcess[str]:
    wrapped = ["sh", "-c", 'exec "$@" >&-', "sh"] if how == "closed" else []
    with unwritable("gone" if how == "closed" else how) as stdout:
        return subprocess.run(
            [*wrapped, sys.executable, "-c", entry, *command],
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=launched.LIMIT,
        )


@pytest.mark.parametrize(
    ("how", "end", "code"),
    [("full", "breaks", 3), ("gone", "", 0), pytest.param("closed", "", 0, marks=pytest.mark.nightly)],
)
def test_a_script_goes_on_and_its_exit_code_still_tells_of_lost_samples(
    two_ranks: dict[str, str], script: list[str], how: str, end: str, code: int
) -> None:
    pod = ended(two_ranks, how, [*script, end])
    assert (pod.returncode, "train epoch 1 is not proved" in pod.stderr) == (code, code == 3), pod.stderr
    said = [line for line in pod.stderr.splitlines() if "standard output cannot be written" in line]
    assert len(said) == 2 and all(CAUSES[how] in line for line in said)  # once for each rank
    assert "Traceback" not in pod.stderr and "Exception ignored" not in pod.stderr


def test_a_task_trains_to_its_end_and_is_evaluated(two_ranks: dict[str, str]) -> None:
    output = Path(two_ranks["TORCHTALLY_OUTPUT"])
    pod = ended(two_ranks, "gone", QUICK, FEW)
    assert pod.returncode == 0, pod.stderr
    assert CAUSES["gone"] in pod.stderr
    proof = output / "proof.json"
    together = [line["phase"] for line in proofs.lines(proof) if line.get("rank", "all") == "all"]
    assert proofs.predicate(proof).holds and together == ["train", "test", "all"]
    command = ["evaluate", "fashion-mnist", "--hidden", "16", "--checkpoint", str(output)]
    evaluation = ended(two_ranks, "full", command, FEW)
    assert evaluation.returncode == 0, evaluation.stderr
    assert json.loads((output / "evaluation.json").read_text())["holds"]


@pytest.mark.cold
@pytest.mark.nightly  # by day, test_verify_cli.py shows a table in ASCII
@pytest.mark.parametrize(
    "chosen", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_an_output_in_ascii_names_the_mark(
    two_ranks: dict[str, str], script: list[str], chosen: dict[str, str]
) -> None:
    pod = alone({**two_ranks, **chosen}, script)
    assert pod.returncode == 0, pod.stderr
    found, (last,) = tallies(pod.stdout)
    assert len(found) == 6 and last["phases"]["train"]["consumed"] == 18
    assert pod.stdout.isascii() and pod.stdout.count("  ok: every sample exactly once") == 2
    assert "standard output cannot be written" not in pod.stderr
