"""The record of a run in its output folder, from which a restart knows that it is one.

It holds the run's id and attempt, never a position: what the weights have seen is in the user's checkpoint alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtally.atomic_file import replace
from torchtally.log import log


@dataclass(frozen=True)
class Record:
    """A run that has begun."""

    run: str
    attempt: int
    task: str
    complete: bool


def path_of(number: int, env: Mapping[str, str] = os.environ) -> Path | None:
    """The file of this process's account number `number`, from 1; None without TORCHTALLY_OUTPUT."""
    folder = env.get("TORCHTALLY_OUTPUT")
    return Path(folder) / ("run.json" if number == 1 else f"run-{number}.json") if folder else None


def find(own: Path | None, task: str) -> tuple[Path | None, Record | None]:
    """The unfinished run of a task, if there is one, and its file.

    It can be in the file of another account: a program that leaves out the folds that are complete numbers them anew.
    """
    record = _read(own)
    if own and not (record and record.task == task):
        for path in sorted(own.parent.glob("run-*.json")):
            other = _read(path)
            if other and other.task == task and not other.complete:
                return path, other
    return own, record if record and record.task == task and not record.complete else None


def _read(path: Path | None) -> Record | None:
    """The record in a file. A damaged file counts as none."""
    try:
        values: dict[str, Any] = json.loads(path.read_bytes()) if path else {}
        found = Record(**values)
    except (OSError, ValueError, TypeError):
        return None
    return found if isinstance(found.run, str) and type(found.attempt) is int and found.attempt >= 0 else None


def write(path: Path | None, record: Record) -> None:
    """Write the record. A failure is a warning: without a record, a restart is one that nobody knows of."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, (json.dumps(asdict(record)) + "\n").encode())
    except OSError as error:
        log.warning(f"the record of the run cannot be written to {path}: {error}; a restart will not be noticed")
