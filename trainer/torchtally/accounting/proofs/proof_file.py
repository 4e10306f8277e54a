"""Writes the proof of a run, a statement about its files: it comes after them, and marks the run as complete."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchtally.atomic_file import clear, replace
from torchtally.environment import variable
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.proof import statement, table
from torchtally.proof.line import to_text
from torchtally.proof.statement import Predicate, Statement

NAME = "proof.json"


def write(
    path: Path,
    subjects: Mapping[str, str],
    lines: Iterable[Mapping[str, Any]],
    last: Mapping[str, Any],
    *,
    checkpoint: tuple[str, str] | None = None,
    training: Mapping[str, Any] | None = None,
    epochs: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write the proof of files that are there, atomically. Raises OSError."""
    every = [*lines]
    texts = [*map(to_text, every), to_text(last)]
    found = Predicate(
        run=last["run"],
        task=last["task"],
        holds=not any(table.wrong(line) for line in every),
        data={phase: stated["data"] for phase, stated in last["phases"].items()},
        torchtally=version("torchtally"),
        image=variable("TORCHTALLY_IMAGE"),
        chart=variable("TORCHTALLY_CHART"),
        checkpoint=checkpoint[0] if checkpoint else None,
        training=training,
        epochs=epochs,
        lines_sha256=statement.sha256_of_lines(texts),
        lines=texts,
    )
    named = {**subjects, **({checkpoint[0]: checkpoint[1]} if checkpoint else {})}
    replace(path, Statement(named, found).printed())


def write_of(path: Path, files: Sequence[Path], lines: Iterable[Mapping[str, Any]], last: Mapping[str, Any]) -> None:
    """Write the proof of a program's own files. Raises Refused for a file that cannot be read or written."""
    if not files:
        raise Refused("write_proof() must have at least one file of the model: a proof without one is of no weights")
    subjects: dict[str, str] = {}
    for each in files:
        try:
            file, sha256 = statement.sha256_of(each)
        except OSError as error:
            raise Refused(f"write_proof() cannot read {error.filename or each}: {error.strerror}") from None
        inside = file.absolute().is_relative_to(path.absolute().parent)
        name = file.absolute().relative_to(path.absolute().parent).as_posix() if inside else file.name
        if subjects.setdefault(name, sha256) != sha256:
            raise Refused(f"write_proof() has two files named {name}: give them other names, or put them beside {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear(path.parent, [path.name])
        write(path, subjects, lines, last)
    except OSError as error:
        raise Refused(f"write_proof() cannot write {path}: {error.strerror}") from None


def write_beside(record: Path | None, lines: Iterable[Mapping[str, Any]], last: Mapping[str, Any]) -> None:
    """Write the proof of a run that names no files: its subject is the run's record, beside which it stands.

    A failure is a warning, because the last line is the proof.
    """
    if record is None:
        return
    path = record.with_name(record.name.replace(record.stem.partition("-")[0], Path(NAME).stem, 1))
    try:
        clear(path.parent, [path.name])
        write(path, {record.name: statement.sha256_of(record)[1]}, lines, last)
    except OSError as error:
        log.warning(f"the proof of the run cannot be written to {path}: {error}; its lines in the log are the proof")
