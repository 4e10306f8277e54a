"""Whether the lines of one run prove its contract. Every reason against it is one sentence."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from torchtally.proof import table
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary

from . import expected, line_check, summary_check
from .log import Log
from .phrasing import numbers
from .problem import Block, Problem


class UnknownRun(Exception):
    """No line is of the run that --run names."""


@dataclass
class Verdict:
    """Whether a run is proved, the lines that count, and every reason against it."""

    run: str | None = None
    attempt: int | None = None
    last: RunSummary | None = None
    lines: list[TallyLine] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def of(self, block: Block) -> list[Problem]:
        return [problem for problem in self.problems if block in problem.blocks]


def judge(log: Log, run: str | None = None, expect_per_pod: int | None = None) -> Verdict:
    """The verdict about a run (default: the only one in the log). Raises UnknownRun."""
    verdict = Verdict(notes=list(log.notes))
    runs = Counter([*(line.run for line in log.lines.values()), *log.summaries])
    described = " and ".join(f"{name} ({count} lines)" for name, count in runs.items())
    if run is not None and runs and run not in runs:
        raise UnknownRun(f"no tally line of run {run}; found: {described}")
    if run is None and len(runs) == 1:
        run = next(iter(runs))
    if run not in runs:
        verdict.problems += [Problem(complaint.text) for complaint in log.complaints]
        if runs:
            verdict.problems.append(Problem(f"{len(runs)} runs in one log: {described}; --run ID chooses one"))
        elif not log.complaints:
            verdict.problems.append(Problem(f"no tally line in {_sources(log.sources)}"))
        return verdict

    for other in runs:
        if other != run:
            verdict.notes.append(f"run {other} ({runs[other]} lines) is in the same log and was ignored")
    assert run is not None
    every = [line for line in log.lines.values() if line.run == run]
    last = log.summaries.get(run)
    faults = list(summary_check.faults(last)) if last else []
    proven = last is not None and not faults
    lines = _lineage(every)
    if last and proven:
        lines = [line for line in lines if not summary_check.superseded(last, line)]
    counted = Counter(line.attempt for line in lines)
    for attempt, count in sorted(Counter(line.attempt for line in every).items()):
        if superseded := count - counted[attempt]:
            verdict.notes.append(
                f"{superseded} lines of attempt {attempt} are superseded: a later attempt resumed before them"
            )
    verdict.run, verdict.last, verdict.lines = run, last, lines
    verdict.attempt = max(line.attempt for line in (*every, *([last] if last else ())))

    missing: list[Problem] = []
    for complaint in log.complaints:
        if complaint.run in (None, run) and (complaint.attempt is None or complaint.attempt >= verdict.attempt):
            blocks = frozenset([complaint.block] if complaint.block else [])
            (missing if complaint.no_log else verdict.problems).append(Problem(complaint.text, "", blocks))
    found, absent = line_check.compare(lines, last.plan if last else every[0].plan)
    missing += absent
    if proven and expect_per_pod is None:  # the samples of each pod are in its own lines alone
        verdict.notes += [f"{text}; the run's last line is proof enough" for text in _at_once(missing)]
    else:
        verdict.problems += missing
    verdict.problems += found
    if last:
        faults += summary_check.contradictions(last, lines)
    verdict.problems += faults
    if verdict.problems and not expected.CAN_NAME:
        verdict.notes.append("the Python package sympy is missing, so lost and doubled samples are not named")
    if expect_per_pod is not None:
        verdict.problems += _expect_per_pod(verdict.lines, expect_per_pod)
    if verdict.holds and not last:
        verdict.notes.append("the run's last line is missing, so the weights that came of it are unknown")
    return verdict


def _lineage(lines: list[TallyLine]) -> list[TallyLine]:
    """The lines of the samples that the final weights have seen, in the order of the run.

    A later attempt resumes from a checkpoint. If it does a phase again, it discards all that earlier attempts did from
    there on.
    """
    phases = {phase: place for place, phase in enumerate(lines[0].plan)} if lines else {}

    def story(line: TallyLine) -> tuple[float, ...]:
        place = phases.get(line.phase, len(phases))
        return line.epoch, place, -line.attempt, float("inf") if line.rank == "all" else line.rank

    lineage: list[TallyLine] = []
    attempt = 0
    for _, block in groupby(sorted(lines, key=story), key=lambda line: line.block):
        newest, *others = block
        if newest.attempt >= attempt:
            attempt = newest.attempt
            lineage += [line for line in (newest, *others) if line.attempt == attempt]
    return lineage


def _at_once(missing: list[Problem]) -> Iterator[str]:
    """One sentence for the same lines that are missing in many epochs."""
    epochs: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for problem in missing:
        if not problem.where or not problem.blocks:
            yield str(problem)
        for phase, epoch in problem.blocks if problem.where else ():
            epochs[problem.text][phase].add(epoch)
    for text, by_phase in epochs.items():
        where = [f"{phase} {numbers('epoch', when)}" for phase, when in by_phase.items()]
        yield f"{', '.join(where)}: {text}"


def _expect_per_pod(lines: list[TallyLine], count: int) -> Iterator[Problem]:
    pods: dict[tuple[Block, str], int] = defaultdict(int)
    starts = {line.block: f" from position {line.start} on" for line in lines if line.start}
    for line in lines:
        if line.phase == "train" and line.rank != "all":
            pods[line.block, line.pod] += line.consumed
    if not pods:
        yield Problem("no tally line of phase train, so --expect-per-pod has nothing to check")
    for (block, pod), consumed in pods.items():
        if consumed != count:
            text = f"pod {pod} consumed {consumed}{starts.get(block, '')}, but --expect-per-pod is {count}"
            yield Problem(text, f"{block[0]} epoch {block[1]}", frozenset([block]))


def fulfilled(line: TallyLine) -> str:
    """The contract that the `all` row of a block without a problem proves."""
    return table.fulfilled(expected.size(line) - line.n)


def _sources(sources: list[str]) -> str:
    shown = ", ".join(sources[:8]) + ", ..." * (len(sources) > 8)
    return shown if len(sources) == 1 else f"{len(sources)} logs: {shown}"
