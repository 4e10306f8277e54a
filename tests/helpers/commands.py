"""The command line of torchtally: alone, and in the pods of a job."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import launched
from accounts import tallies

TORCHTALLY = [sys.executable, "-m", "torchtally.cli"]
HERE = Path(__file__).parent
# Large batches of a small model: what is tested here is not learning.
BATCHES = ["run", "fashion-mnist", "--epochs", "1", "--batch-size", "1000"]
QUICK = [*BATCHES, "--hidden", "16"]
# The entry point with a task of few samples. Its ranks are forked from it.
FEW = """
import dataclasses, sys
from torchtally import cli, tasks
from torchtally.training.task import Samples

load = tasks.load

def few(name, options):
    task = load(name, options)
    return dataclasses.replace(
        task, load=lambda *where: tuple(Samples(each.inputs[:90], each.labels[:90]) for each in task.load(*where))
    )

tasks.load = few
sys.exit(cli.main(sys.argv[1:]))
"""


def pods(
    count: int,
    environment: dict[str, str],
    command: list[str],
    each: list[dict[str, str]] | None = None,
    entry: str = launched.ENTRY,
) -> list[subprocess.CompletedProcess[str]]:
    """Run `command` in the pods of a job, each with its own of `each`, until all have ended."""
    with tempfile.TemporaryDirectory() as folder, launched.job(environment, Path(folder), count) as job:
        started = [job.start(rank, command, entry, **(each[rank] if each else {})) for rank in range(count)]
        return [subprocess.CompletedProcess(command, pod.wait(), pod.rest(), pod.errors) for pod in started]


def alone(
    environment: dict[str, str], command: list[str], entry: str = launched.ENTRY
) -> subprocess.CompletedProcess[str]:
    """Run `command` outside of any job."""
    started = [sys.executable, "-c", entry, *command]
    return subprocess.run(started, env=environment, capture_output=True, text=True, timeout=launched.LIMIT)


def lines(text: str) -> list[dict[str, Any]]:
    """Of the phases' ranks, and of all ranks together."""
    return tallies(text)[0]


def last_line(text: str) -> dict[str, Any]:
    """Of the run."""
    (found,) = tallies(text)[1]
    return found
