"""The record of a run in its output folder, from which a restart knows that it is one.

It holds the run's id and attempt, never a position: what the weights have seen is in the user's checkpoint alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtally.atomic_file import clear, replace
from torchtally.log import log


@dataclass(frozen=True)
class Record:
    """A run that has begun."""

    run: str
    attempt: int
    task: str
    complete: bool


_open: set[Path] = set()  # the files of the accounts in use in this process


def find(
    number: int, run: str, task: str, env: Mapping[str, str] = os.environ
) -> tuple[str, Path | None, Record | None]:
    """The id of a new run of the process's account `number`, from 1; its file; the task's unfinished run, if any.

    An unfinished run can be in the file of another account: a program that leaves out the folds that are complete
    numbers them anew. A new run takes neither the file of an unfinished one nor an id that was used. There is no file
    without TORCHTALLY_OUTPUT. An account `claim`s its file once it has begun, and `release`s it in the end.
    """
    folder = env.get("TORCHTALLY_OUTPUT")
    if not folder:
        return _id(run, number), None, None
    own, known = _path(folder, number), sorted(Path(folder).glob("run*.json"))
    records = {path: record for path in (own, *known) if path not in _open and (record := _read(path))}
    for path, record in records.items():
        if record.task == task and not record.complete:
            return record.run, path, record
    used = {record.run for record in records.values()}
    unfinished = {path for path, record in records.items() if not record.complete}
    while _path(folder, number) in _open | unfinished or _id(run, number) in used:
        number += 1
    return _id(run, number), _path(folder, number), None


def claim(path: Path | None) -> None:
    """Keep a file for an account of this process: other accounts neither take it nor see a restart in it."""
    if path:
        _open.add(path)


def release(path: Path | None) -> None:
    """End that."""
    if path:
        _open.discard(path)


def _path(folder: str, number: int) -> Path:
    return Path(folder) / ("run.json" if number == 1 else f"run-{number}.json")


def _id(run: str, number: int) -> str:
    return run if number == 1 else f"{run}.{number}"


def _read(path: Path) -> Record | None:
    """The record in a file. A damaged file counts as none."""
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
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
        clear(path.parent, [path.name])
        replace(path, (json.dumps(asdict(record)) + "\n").encode())
    except OSError as error:
        log.warning(f"the record of the run cannot be written to {path}: {error}; a restart will not be noticed")
