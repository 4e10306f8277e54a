"""A proof that was archived, in place of logs or beside them, and the files that it must be of."""

from collections.abc import Sequence
from pathlib import Path

from torchtally.checkpoints import manifest
from torchtally.errors import Refused
from torchtally.proof import statement
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.statement import Statement
from torchtally.verifier import statement_check
from torchtally.verifier.log import Complaint, Log
from torchtally.verifier.phrasing import attempt_names
from torchtally.verifier.problem import Problem
from torchtally.verifier.verdict import Verdict


def is_one(path: Path) -> bool:
    """Whether a path is that of a proof. What cannot be read is none: reading it as a log tells why."""
    try:
        return path.is_file() and statement.is_one(path)
    except OSError:
        return False


def verdict(
    path: Path, models: Sequence[str], run: str | None, expect_per_pod: int | None, told: Sequence[ShardSizes]
) -> Verdict:
    """The verdict about a proof, of which `models` must be. Raises Refused and UnknownRun."""
    try:
        stated = Statement.parse(path.read_bytes())
        found = statement_check.verdict(stated, run, expect_per_pod, told)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"cannot read the proof {path}: {error}") from error
    for model in models:
        _compare(stated, Path(model), found)
    return found


def add_to(log: Log, path: Path) -> None:
    """Add the lines of a proof to the logs of its run, whose own may be lost. A note says why it is of no use there."""
    try:
        stated = Statement.parse(path.read_bytes())
        found = statement_check.verdict(stated, told=log.told)
        reason = _stale(log, stated, path.parent)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        reason = str(error)
    if reason:
        log.notes.append(f"the proof {path} is not used: {reason}")
        return
    if wrong := next((problem for problem in found.problems if not problem.missing), None):
        log.complaints.append(Complaint(f"{path}: {wrong}", stated.predicate.run))
    for number, line in enumerate(stated.predicate.lines, 1):
        log.add(line, f"{path}, line {number}")


def _stale(log: Log, stated: Statement, folder: Path) -> str | None:
    """Why a proof, which is in this folder, is not of the run in the logs, or of an end that it has continued from."""
    run, last = stated.predicate.run, statement_check.last_of(stated)
    if run not in log.runs and run not in log.heard.attempts:
        return f"it is of run {run}, of which the logs have no line"
    later = [each for each in log.heard.attempts.get(run, ()) if last and each[1] > last.began]
    if last and later:
        own, other = attempt_names([last.attempt_began, min(later)])
        return f"it is of {own} of run {run}, and {other} came later"
    for name, sha256 in stated.subjects.items():
        if (folder / name).exists() and statement.sha256_of(folder / name)[1] != sha256:
            return f"{folder / name} has changed since"
    return None


def _compare(stated: Statement, model: Path, found: Verdict) -> None:
    """Add to a verdict whether the statement is of a file."""
    try:
        file, sha256 = statement.sha256_of(model)
        damage = _damage(file) if model.is_dir() else None
    except OSError as error:
        raise Refused(
            f"--model {model} cannot be read: {error.filename or model}: {error.strerror}; give what the proof is of"
        ) from error
    names = [name for name, each in stated.subjects.items() if each == sha256]
    if not names:
        subjects = ", ".join(f"{name} (sha256:{each})" for name, each in stated.subjects.items())
        found.problems.append(Problem(f"{file} has sha256:{sha256}, and the proof is of {subjects}"))
    elif damage:
        found.problems.append(Problem(f"{model} is not the checkpoint that was saved: {damage}"))
    else:
        found.notes.append(f"{file} is the {names[0]} of the proof")


def _damage(file: Path) -> str | None:
    """What is wrong with the files that a checkpoint's manifest names. Raises Refused, and OSError."""
    try:
        files = manifest.parse(file.read_bytes(), str(file.parent)).files
    except manifest.Torn as torn:
        return str(torn)
    for name, stated in files.items():
        each = file.parent / name
        if not each.is_file():
            return f"{name} is missing"
        if statement.sha256_of(each)[1] != stated.sha256:
            return f"{name} has another SHA-256 than its manifest says"
    return None
