"""A built-in task on the ranks of one pod: its runs, and what they report."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import failpoint
import launched
from called import verified
from commands import TORCHTALLY

from torchtally import events


def start(data: Path, output: Path, world: int, *command: str, stops_at: Path | None = None) -> subprocess.Popen[str]:
    """`stops_at` is the file of a failpoint."""
    own = {"TORCHTALLY_DATA": str(data), "TORCHTALLY_OUTPUT": str(output), "TORCHTALLY_CACHE": f"{data}-cache"}
    own |= {"FAILPOINT": str(stops_at)} if stops_at else {}
    return subprocess.Popen(
        [*([sys.executable, failpoint.__file__] if stops_at else TORCHTALLY), *command],
        env=launched.environment(**own, PET_NPROC_PER_NODE=str(world)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(code: int, data: Path, output: Path, world: int, *command: str) -> str:
    """What a run says that ends with this code."""
    printed, _ = (job := start(data, output, world, *command)).communicate(timeout=launched.LIMIT)
    assert job.returncode == code, printed
    return printed


def whole(data: Path, output: Path, world: int, *command: str) -> str:
    """What a run says that ends with 0."""
    return ended(0, data, output, world, *command)


def killed_and_resumed(data: Path, output: Path, worlds: tuple[int, int], *command: str) -> str:
    """What a run says that goes on, on other ranks, after one that was killed within an epoch. Both are proved."""
    (stop := output.parent / "failpoint").write_text(events.Saved.__name__)
    job = start(data, output, worlds[0], *command, stops_at=stop)
    assert job.stdout
    first = []
    for line in job.stdout:
        first.append(line)
        if any(saved.position for saved in reported(line, events.Saved)):
            break
    os.killpg(job.pid, signal.SIGKILL)
    stop.unlink()
    first += [*job.stdout]
    job.wait(launched.LIMIT)
    second = whole(data, output, worlds[1], *command)
    [resumed] = reported(second, events.Resumed)
    assert (resumed.epoch, resumed.position) > (1, 0)
    judged = verified("-", log="".join(first) + second)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    return second


def reported(output: str, kind: type[Any]) -> list[Any]:
    return [each.event for each in events.in_lines(output.splitlines()) if isinstance(each.event, kind)]
