"""The task fashion-mnist as a command: alone, and in the pods of a job."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ranks
from accounts import tallies

TORCHTALLY = [sys.executable, "-m", "torchtally.cli"]
HERE = Path(__file__).parent
LIMIT = 240  # seconds
# Large batches of a small model: what is tested here is not learning.
BATCHES = ["run", "fashion-mnist", "--epochs", "1", "--batch-size", "1000"]
QUICK = [*BATCHES, "--hidden", "16"]


def pods(
    count: int, environment: dict[str, str], command: list[str], each: list[dict[str, str]] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run `command` in the pods of a job, each with the environment that PyTorchJob gives it and its own `each`."""
    port = str(ranks.free_port())
    started = []
    for rank in range(count):
        job = {
            "HOSTNAME": "demo-master-0" if rank == 0 else f"demo-worker-{rank - 1}",
            **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "127.0.0.1"),
            **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), port),
            **{name: str(rank) for name in ("RANK", "PET_NODE_RANK")},
            **{"WORLD_SIZE": str(count), "PET_NNODES": str(count), "PET_NPROC_PER_NODE": "1"},
        }
        env = {**environment, **job, **(each[rank] if each else {})}
        started.append(
            subprocess.Popen(
                [*TORCHTALLY, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE
            )
        )
    try:
        ended = []
        for process in started:
            out, err = process.communicate(timeout=LIMIT)
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        return ended
    finally:
        for process in started:
            process.kill()


def alone(environment: dict[str, str], command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `command` outside of any job."""
    return subprocess.run(
        [*TORCHTALLY, *command], env=environment, capture_output=True, text=True, timeout=LIMIT, cwd=HERE
    )


def lines(text: str) -> list[dict[str, Any]]:
    """Of the phases' ranks, and of all ranks together."""
    return tallies(text)[0]


def last_line(text: str) -> dict[str, Any]:
    """Of the run."""
    (found,) = tallies(text)[1]
    return found
