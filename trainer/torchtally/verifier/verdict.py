"""Whether the lines of each run prove its contract. Every reason against it is one sentence."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from torchtally.errors import Refused
from torchtally.proof import table
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.verifier import expected, growth, line_check, lineage, summary_check
from torchtally.verifier.line_groups import Lines, firsts, in_order
from torchtally.verifier.log import Complaint, Log
from torchtally.verifier.outcome import Outcome, Unsuccessful
from torchtally.verifier.phrasing import attempt_names, counted, numbers
from torchtally.verifier.problem import Block, Problem


class UnknownRun(Refused):
    """No line is of the run that --run names."""


@dataclass
class Verdict:
    """Whether a run is proved, the lines that count, and every reason against it."""

    run: str | None = None
    attempt: int | None = None
    last: RunSummary | None = None
    groups: list[Lines] = field(default_factory=list)  # of lines that count
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    job: Unsuccessful | None = None  # that the run is of

    @cached_property
    def lines(self) -> list[TallyLine]:
        """The lines that count, in the order of the run."""
        return [*in_order(self.groups)]

    @property
    def together(self) -> list[TallyLine]:
        """Those of all ranks together."""
        return [line for each in self.groups if (line := each.line("all"))]

    @property
    def holds(self) -> bool:
        """Whether nothing is against it. A proof also needs the run's last line: a program can refuse a run there."""
        return not self.problems

    @property
    def outcome(self) -> Outcome:
        if self.holds and self.last:
            return Outcome.PROVED
        if not all(problem.missing for problem in self.problems):
            return Outcome.DISPROVED
        return self.job.outcome if self.job else Outcome.INCOMPLETE

    def of(self, block: Block) -> list[Problem]:
        return [problem for problem in self.problems if block in problem.blocks]


def judge(log: Log, run: str | None = None, expect_per_pod: int | None = None) -> list[Verdict]:
    """The verdicts about all runs in the log, or about the one that is asked for. Raises UnknownRun."""
    counts = Counter[str]()
    for each in log.groups:
        counts[each.first.run] += len(each)
    counts.update(each.run for each in chain(*log.lasts.values()))
    if not counts:
        problems = [_problem(complaint) for complaint in log.complaints]
        problems = problems or [Problem(f"no tally line in {_sources(log.sources)}", missing=True)]
        return [Verdict(problems=problems, notes=[*log.remarks, *_hint(log)], job=log.job)]
    if run is None:
        return [_judge(log, each, expect_per_pod) for each in log.runs]
    named = {name: f"{name} ({counted(count, 'line')})" for name, count in counts.items()}
    if run not in log.runs:
        raise UnknownRun(f"no tally line of run {run}; found: {' and '.join(named.values())}")
    verdict = _judge(log, run, expect_per_pod)
    others = [f"run {each} is in the same log and was ignored" for name, each in named.items() if name != run]
    verdict.notes[len(log.remarks) : len(log.remarks)] = others
    return [verdict]


def _hint(log: Log) -> Iterator[str]:
    """Why there may be no tally line at all."""
    if log.heard.failed:
        yield log.heard.failed
    elif not log.complaints and not log.heard.attempts:
        yield (
            "no rank has recorded samples: the program has no account (docs/guides/own-script.md). `torchtally run` "
            "observes what the loaders of such a program hand out"
        )


def _judge(log: Log, run: str, expect_per_pod: int | None) -> Verdict:
    if run not in log.begins:  # it can have died in its first epoch
        lost = Problem(f"no tally line of run {run}, which began at {log.heard.started[run][0]}", missing=True)
        return Verdict(run, problems=[lost], notes=log.remarks, job=log.job)
    every = [each for each in log.groups if each.first.run == run]
    sizes = log.sizes
    last = lineage.end(log.lasts[run], firsts(every))
    if last:
        last = summary_check.with_sizes(last, sizes)
    faults = list(summary_check.faults(last)) if last else []
    proven = last is not None and not faults
    groups = lineage.of(every, last, proven=proven)
    superseded = lineage.superseded(every, groups)
    if last:
        faults += _faults_before(log.lasts[run], last, groups, sizes)
    groups, grown = growth.as_planned_at_last(groups, last)
    lines = firsts(groups)
    verdict = Verdict(run, last=last, groups=groups, notes=[*log.remarks, *superseded, *grown], job=log.job)
    newest = max((each.attempt_began for each in (*lines, *([last] if last else ()))), default=(0, 0))
    verdict.attempt = newest[0] if lines or last else None

    missing: list[Problem] = []
    for complaint in log.complaints:
        if complaint.is_of(run, newest) or complaint.is_about(lines):
            (missing if complaint.no_log else verdict.problems).append(_problem(complaint))
    if not lines and not last:  # all that is known of the run is what is wrong with its lines
        verdict.problems += missing
        return verdict
    found, absent = line_check.compare(groups, last, sizes)
    missing += absent
    if proven and expect_per_pod is None:  # the samples of each pod are in its own lines alone
        verdict.notes += [f"{text}; the run's last line is proof enough" for text in _at_once(missing)]
    else:
        verdict.problems += missing
    verdict.problems += [*found, *lineage.doubts(firsts(every), last)]
    if last:
        faults += summary_check.contradictions(last, groups)
    verdict.problems += faults
    if verdict.problems and not expected.CAN_NAME:
        verdict.notes.append("the Python package sympy is missing, so lost and duplicated samples are not named")
    if expect_per_pod is not None:
        verdict.problems += _expect_per_pod(groups, expect_per_pod)
    return verdict


def _problem(complaint: Complaint) -> Problem:
    blocks = frozenset([complaint.block] if complaint.block else [])
    return Problem(complaint.text, "", blocks, missing=complaint.no_log or complaint.unread)


def _faults_before(
    lasts: list[RunSummary], last: RunSummary, groups: list[Lines], sizes: Mapping[str, ShardSizes]
) -> Iterator[Problem]:
    """What is wrong with the last lines from whose ends the run continued to that of `last`."""
    for each in lasts:
        if growth.went_on(each, last):
            [name] = attempt_names([each.attempt_began])
            own = [group for group in groups if group.first.attempt_began == each.attempt_began]
            stated = summary_check.with_sizes(each, sizes)
            for problem in chain(summary_check.faults(stated), summary_check.contradictions(stated, own)):
                yield replace(problem, where=", ".join(filter(None, [name, problem.where])))


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


def _expect_per_pod(groups: list[Lines], count: int) -> Iterator[Problem]:
    pods: dict[tuple[Block, str], int] = defaultdict(int)
    starts: dict[Block, str] = {}
    ends: dict[Block, str] = {}
    ranks = Counter[Block]()
    for line in in_order(groups):
        if line.start:
            starts[line.block] = f" from position {line.start} on"
        if line.end is not None:
            ends[line.block] = f" before position {line.end}"
        if line.rank != "all":
            ranks[line.block] += 1
            if line.phase == "train":
                pods[line.block, line.pod] += line.consumed
    if not pods:
        yield Problem("no tally line of phase train, so --expect-per-pod has nothing to check", missing=True)
    whole = {line.block for line in firsts(groups) if ranks[line.block] == line.world}
    for (block, pod), consumed in pods.items():
        if consumed != count:
            where = starts.get(block, "") + ends.get(block, "")
            text = f"pod {pod} consumed {consumed}{where}, but --expect-per-pod is {count}"
            more = consumed < count and block not in whole  # can be in lines that are missing
            yield Problem(text, f"{block[0]} epoch {block[1]}", frozenset([block]), missing=more)


def fulfilled(line: TallyLine) -> str:
    """The contract that the `all` row of a block without a problem proves."""
    size = expected.size(line)
    return table.fulfilled(size - line.n, line.end, line.dropped or 0, size if line.drawn_digest else None)


def _sources(sources: list[str]) -> str:
    shown = ", ".join(sources[:8]) + ", ..." * (len(sources) > 8)
    return shown if len(sources) == 1 else f"{len(sources)} logs: {shown}"
