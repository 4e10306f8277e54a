"""The example of a GPT: killed with signal 9 while it trains, it goes on, also with another number of ranks."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import failpoint
import pytest
from accounts import tallied

from torchtally import events

ROOT = Path(__file__).parents[3]
OPTIONS = ("--steps", "40", "--batch", "4", "--length", "16", "--width", "16", "--save-every", "0.1")
LIMIT = 300  # seconds


def failpoint_of(folder: Path) -> Path:
    return folder.parent / "failpoint"


def start(folder: Path, world: int) -> subprocess.Popen[str]:
    text = folder.parent / "text.txt"
    text.write_text("".join(chr(97 + number * number % 23) for number in range(3000)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    script = [sys.executable, str(ROOT / "examples/gpt.py"), *OPTIONS, "--text", str(text), "--output", str(folder)]
    return subprocess.Popen(
        [sys.executable, failpoint.__file__, "run", "--", *script],
        env={**kept, "PET_NPROC_PER_NODE": str(world), "OMP_NUM_THREADS": "1", "FAILPOINT": str(failpoint_of(folder))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def killed(folder: Path, world: int) -> str:
    """What a job printed that was killed once it had written a checkpoint within its training."""
    failpoint_of(folder).write_text(events.Saved.__name__)
    job, printed = start(folder, world), []
    assert job.stdout
    for line in job.stdout:
        printed.append(line)
        record = events.read(line)
        if record and isinstance(record.event, events.Saved) and record.event.position > 0:
            break
    os.killpg(job.pid, signal.SIGKILL)
    failpoint_of(folder).unlink()
    printed += job.stdout
    job.wait(LIMIT)
    return "".join(printed)


def whole(folder: Path, world: int) -> str:
    job = start(folder, world)
    output, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, output
    return output


def sample(output: str) -> str:
    [found] = re.findall("^sample: (.*)$", output, re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return whole(tmp_path_factory.mktemp("undisturbed") / "gpt", 2)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_killed_gpt_goes_on_where_its_weights_stand(world: int, tmp_path: Path, undisturbed: str) -> None:
    first = killed(tmp_path / "gpt", 2)
    second = whole(tmp_path / "gpt", world)
    assert "sample:" not in first
    [resumed] = [each.event for each in events.in_lines(second.splitlines()) if isinstance(each.event, events.Resumed)]
    assert (resumed.epoch, resumed.position) > (1, 0)
    last = tallied(second)[-1]
    assert last["attempt"] == 1
    judged = subprocess.run(
        [sys.executable, ROOT / "scripts/verify_shards.py", "-"], input=first + second, capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    if world == 2:  # others leave out other samples at the end of an epoch, and add up in another order
        assert last["phases"]["train"]["consumed"] == tallied(undisturbed)[-1]["phases"]["train"]["consumed"]
        assert sample(second) == sample(undisturbed)
