"""A statement in place of logs: its lines are judged as those of a log, and what it says of them must be true."""

from collections.abc import Iterable

from torchtally.proof.run_summary import RunSummary
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.statement import Statement, sha256_of_lines
from torchtally.verifier.log import Log
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.problem import Problem
from torchtally.verifier.verdict import Verdict, judge


def verdict(
    statement: Statement, run: str | None = None, expect_per_pod: int | None = None, told: Iterable[ShardSizes] = ()
) -> Verdict:
    """The verdict about a statement's run, by its lines alone.

    It is that about a log with these lines, except that a statement which contradicts itself is disproved.

    Raises ValueError for a line that this release cannot read, and UnknownRun if `run` is another one.
    """
    log = Log(told=[*told])
    for number, line in enumerate(statement.predicate.lines, 1):
        log.add(line, f"line {number}")
    if unread := next((each for each in log.complaints if each.unread), None):
        raise ValueError(unread.text)
    problems = [*_of_lines(statement, log)]
    if problems:  # the lines may be another run's
        return Verdict(run=statement.predicate.run, problems=problems)
    [found] = judge(log, run, expect_per_pod)
    found.problems += _of_verdict(statement, found)
    return found


def _of_lines(statement: Statement, log: Log) -> Iterable[Problem]:
    """What in the statement contradicts its lines."""
    predicate = statement.predicate
    if (found := sha256_of_lines(predicate.lines)) != predicate.lines_sha256:
        yield Problem(
            f"the lines are not those that were written: their SHA-256 is {found}, and lines_sha256 is "
            f"{predicate.lines_sha256}"
        )
        return
    if log.complaints:
        yield Problem(log.complaints[0].text)
        return
    if others := [run for run in log.begins if run != predicate.run]:
        yield Problem(f"the statement is of run {predicate.run}, and it has lines of run {others[0]}")
        return
    last = last_of(statement)
    if last is None:
        yield Problem(f"the run's last line is missing: the last one of {len(predicate.lines)} lines is another")
        return
    if last.task != predicate.task:
        yield Problem(f"the statement is of task {predicate.task}, and the last line of {last.task}")
    if (data := {phase: stated.data for phase, stated in last.phases.items()}) != predicate.data:
        yield Problem(f"the statement names the data {dict(predicate.data)}, and the last line {data}")
    if last.model and last.model.removeprefix("sha256:") not in statement.files.values():
        files = ", ".join(f"{name} (sha256:{sha256})" for name, sha256 in statement.files.items()) or "no file"
        yield Problem(f"the last line is of the model {last.model}, and the statement is of {files}")


def _of_verdict(statement: Statement, found: Verdict) -> Iterable[Problem]:
    """What in the statement contradicts the verdict on its lines."""
    last = last_of(statement)
    if found.last is None or last is None or found.last.attempt_began != last.attempt_began:
        yield Problem("the last one of the lines is not the run's last line")
    elif found.outcome is Outcome.PROVED and not statement.predicate.holds:
        yield Problem(
            "the statement says that the proof does not hold, and its lines do not show why: some are missing"
        )


def last_of(statement: Statement) -> RunSummary | None:
    """The last one of its lines, where that is a run's last line."""
    log = Log()
    log.add(statement.predicate.lines[-1], "")
    summaries = [each for of_run in log.lasts.values() for each in of_run]
    return summaries[0] if summaries else None
