"""A built-in task on the ranks of one pod: its runs, and what they report."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import launched

from torchtally import events

LIMIT = 300  # seconds


def start(data: Path, output: Path, world: int, *command: str) -> subprocess.Popen[str]:
    own = {"TORCHTALLY_DATA": str(data), "TORCHTALLY_OUTPUT": str(output), "TORCHTALLY_CACHE": f"{data}-cache"}
    return subprocess.Popen(
        [sys.executable, "-m", "torchtally.cli", *command],
        env=launched.environment(**own, PET_NPROC_PER_NODE=str(world)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def whole(data: Path, output: Path, world: int, *command: str) -> str:
    """What a run says that ends with 0."""
    printed, _ = (job := start(data, output, world, *command)).communicate(timeout=LIMIT)
    assert job.returncode == 0, printed
    return printed


def reported(output: str, kind: type[Any]) -> list[Any]:
    return [each.event for each in events.in_lines(output.splitlines()) if isinstance(each.event, kind)]
