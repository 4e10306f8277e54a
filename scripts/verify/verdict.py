"""Do the tallies of one run prove its contract? Every reason why not is one sentence."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter

from torchtally.proof import table
from torchtally.proof.digest import OF_POSITIONS, Digest

from . import expected, whole, wrong
from .closing import Closing
from .lines import NAMED, Log, Tally
from .problem import Block, Problem
from .words import Rank, differing, numbers, who


class UnknownRun(Exception):
    """--run names a run that left no line."""


@dataclass
class Verdict:
    run: str | None = None
    attempt: int | None = None
    last: Closing | None = None
    tallies: list[Tally] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def of(self, block: Block) -> list[Problem]:
        return [problem for problem in self.problems if block in problem.blocks]


def judge(log: Log, run: str | None = None, expect_per_pod: int | None = None) -> Verdict:
    verdict = Verdict(notes=list(log.notes))
    runs = Counter([*(tally.run for tally in log.tallies.values()), *log.closings])
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
            verdict.notes.append(f"run {other} ({runs[other]} lines) is in the same log and was not looked at")
    assert run is not None
    every = [tally for tally in log.tallies.values() if tally.run == run]
    last = log.closings.get(run)
    faults = list(whole.faults(last)) if last else []
    proven = last is not None and not faults
    tallies = _lineage(every)
    if last and proven:
        tallies = [tally for tally in tallies if not whole.superseded(last, tally)]
    counted = Counter(tally.attempt for tally in tallies)
    for attempt, lines in sorted(Counter(tally.attempt for tally in every).items()):
        if superseded := lines - counted[attempt]:
            verdict.notes.append(f"{superseded} lines of attempt {attempt} do not count: a later attempt went back")
    verdict.run, verdict.last, verdict.tallies = run, last, tallies
    verdict.attempt = max(line.attempt for line in (*every, *([last] if last else ())))

    missing: list[Problem] = []
    for complaint in log.complaints:
        if complaint.run in (None, run) and (complaint.attempt is None or complaint.attempt >= verdict.attempt):
            blocks = frozenset([complaint.block] if complaint.block else [])
            (missing if complaint.no_log else verdict.problems).append(Problem(complaint.text, "", blocks))
    found, absent = _compare(tallies, last.plan if last else every[0].plan)
    missing += absent
    if proven and expect_per_pod is None:  # what each pod has consumed, its own lines alone say
        verdict.notes += [f"{text}; the run's last line is proof enough" for text in _at_once(missing)]
    else:
        verdict.problems += missing
    verdict.problems += found
    if last:
        faults += whole.contradictions(last, tallies)
    verdict.problems += faults
    if verdict.problems and not expected.CAN_NAME:
        verdict.notes.append("the Python package sympy is missing: what a digest says was lost or doubled is not named")
    if expect_per_pod is not None:
        verdict.problems += _expect_per_pod(verdict.tallies, expect_per_pod)
    if verdict.holds and not last:
        verdict.notes.append("the run's last line is not there, so it is not said which weights came of it")
    return verdict


def _lineage(tallies: list[Tally]) -> list[Tally]:
    """The lines of what the final weights have seen, as the run went.

    A later attempt goes on from a checkpoint. Where it has done a phase again, what an earlier one did from there on
    was thrown away.
    """
    phases = {phase: place for place, phase in enumerate(tallies[0].plan)} if tallies else {}

    def story(tally: Tally) -> tuple[float, ...]:
        place = phases.get(tally.phase, len(phases))
        return tally.epoch, place, -tally.attempt, float("inf") if tally.rank == "all" else tally.rank

    lineage: list[Tally] = []
    attempt = 0
    for _, block in groupby(sorted(tallies, key=story), key=lambda tally: tally.block):
        lines = list(block)
        if lines[0].attempt >= attempt:
            attempt = lines[0].attempt
            lineage += [tally for tally in lines if tally.attempt == attempt]
    return lineage


def _compare(tallies: list[Tally], plan: dict[str, int]) -> tuple[list[Problem], list[Problem]]:
    """What is wrong with the lines that are there, and which lines are not."""
    blocks: dict[Block, dict[Rank, Tally]] = defaultdict(dict)
    for tally in tallies:
        blocks[tally.block][tally.rank] = tally

    problems = list(_disagreements(tallies, "", ("task", "plan")))
    unsettled: list[Problem] = []
    for attempt in {tally.attempt for tally in tallies}:  # the next one may have another number of ranks
        unsettled += _disagreements([tally for tally in tallies if tally.attempt == attempt], "", ("world",))
    problems += unsettled
    missing = [] if problems else list(_missing(blocks, plan))
    settled = not unsettled
    comparable: set[str] = set()
    for phase in dict.fromkeys(phase for phase, _ in blocks):
        own = [tally for tally in tallies if tally.phase == phase]
        found = list(_disagreements(own, phase, ("n", "seed", "contract", "order", "data")))
        for attempt in {tally.attempt for tally in own}:
            found += _disagreements([tally for tally in own if tally.attempt == attempt], phase, ("batch",))
        problems += found
        if settled and not found:
            comparable.add(phase)

    for block, ranks in blocks.items():
        where = f"{block[0]} epoch {block[1]}"
        together = ranks.get("all")
        alone = [tally for rank, tally in ranks.items() if rank != "all"]
        texts: list[str] = []
        for tally in [together, *alone] if together else alone:
            if block[0] in comparable and expected.is_right(tally):
                continue
            texts += _faults(tally)
            if block[0] in comparable:
                texts += wrong.faults(tally)
        starts = list(_disagreements(list(ranks.values()), where, ("start",)))  # an epoch's own
        problems += starts
        if together and block[0] in comparable and not starts and len(alone) == together.world:
            texts += _sum_faults(together, alone)
        problems += [Problem(text, where, frozenset([block])) for text in texts]
    return problems, missing


def _disagreements(tallies: list[Tally], where: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if len(list(islice(groupby(tallies, attrgetter(name)), 2))) < 2:
            continue  # as nearly always
        epochs = {tally.epoch for tally in tallies}
        camps: dict[str, list[Tally]] = defaultdict(list)
        for tally in tallies:
            camps[json.dumps(getattr(tally, name), sort_keys=True)].append(tally)
        if len(camps) > 1:
            sides = []
            for value, camp in camps.items():
                when = {tally.epoch for tally in camp}
                in_epochs = f" in {numbers('epoch', when)}" if where and when != epochs else ""
                sides.append(f"{value} ({who(tally.rank for tally in camp)}{in_epochs})")
            blocks = frozenset(tally.block for tally in tallies)
            yield Problem(f"the lines disagree on {name}: {', '.join(sides)}", where, blocks)


def _missing(blocks: dict[Block, dict[Rank, Tally]], plan: dict[str, int]) -> Iterator[Problem]:
    for phase, count in plan.items():
        seen = {epoch for name, epoch in blocks if name == phase}
        if count and not seen:
            yield Problem(f"no tally line of phase {phase} at all, {numbers('epoch', range(1, count + 1))} planned")
        elif absent := set(range(1, count + 1)) - seen:
            yield Problem(f"no tally line of {numbers('epoch', absent)}, {count} planned", phase)
    planned: dict[Block, set[Rank]] = {
        block: {*range(next(iter(present.values())).world), "all"} for block, present in blocks.items()
    }
    everybody = set[Rank]().union(*planned.values())
    if nowhere := everybody.difference(*blocks.values()):
        yield Problem(f"no tally line of {who(nowhere)} at all", "", frozenset(blocks))
    for block, present in blocks.items():
        if absent_ranks := planned[block] - nowhere - present.keys():
            yield Problem(f"no tally line of {who(absent_ranks)}", f"{block[0]} epoch {block[1]}", frozenset([block]))


def _at_once(missing: list[Problem]) -> Iterator[str]:
    """What is missing in many epochs alike, in one sentence."""
    epochs: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for problem in missing:
        if not problem.where or not problem.blocks:
            yield str(problem)
        for phase, epoch in problem.blocks if problem.where else ():
            epochs[problem.text][phase].add(epoch)
    for text, by_phase in epochs.items():
        where = [f"{phase} {numbers('epoch', when)}" for phase, when in by_phase.items()]
        yield f"{', '.join(where)}: {text}"


def _faults(tally: Tally) -> Iterator[str]:
    """Where the counts of one line do not hold."""
    name = who([tally.rank])
    if tally.expected != (size := expected.size(tally)):
        start = f" from position {tally.start} on" if tally.start else ""
        yield (
            f"{name} expected {tally.expected}, but N {tally.n} over world size {tally.world}{start} "
            f"under {tally.contract} makes {size}"
        )
    if tally.lost is None or tally.doubled is None:
        yield f"{name}: more was lost or doubled than can be counted"
        return
    if tally.consumed != (sum_ := tally.expected - tally.lost + tally.doubled):
        yield (
            f"{name} consumed {tally.consumed}, which does not fit: "
            f"expected {tally.expected} - lost {tally.lost} + doubled {tally.doubled} = {sum_}"
        )
    if tally.lost or tally.doubled:
        lost, doubled = _named(tally.lost, tally.lost_indices), _named(tally.doubled, tally.doubled_indices)
        outside = f", {tally.outside} of them no sample" if tally.outside else ""
        yield f"{name}: {lost} lost, {doubled} doubled{outside}"


def _sum_faults(together: Tally, alone: list[Tally]) -> Iterator[str]:
    before = f" and the {together.start} samples before" if together.start else ""
    for name in ("expected", "consumed"):
        stated, sum_ = getattr(together, name), together.start + sum(getattr(tally, name) for tally in alone)
        if stated != sum_:
            yield f"all ranks together say {name} {stated}, but their lines{before} add up to {sum_}"
    sum_of_digests = expected.sum_of(alone) + expected.carried(together)
    if together.start:  # which samples they were no closed form says
        sum_of_digests = Digest((*sum_of_digests.of_positions, *together.digest.words[OF_POSITIONS:]))
    if names := differing(together.digest, sum_of_digests):
        yield f"all ranks together say another digest than their lines{before} add up to: it differs in {names}"
    for name in ("lost", "doubled"):  # less is possible: what one rank lost, another may have consumed
        stated, each = getattr(together, name), [getattr(tally, name) for tally in alone]
        if stated is not None and None not in each and stated > sum(each):
            yield f"all ranks together say {name} {stated}, but their lines add up to only {sum(each)}"


def _expect_per_pod(tallies: list[Tally], count: int) -> Iterator[Problem]:
    pods: dict[tuple[Block, str], int] = defaultdict(int)
    starts = {tally.block: f" from position {tally.start} on" for tally in tallies if tally.start}
    for tally in tallies:
        if tally.phase == "train" and tally.rank != "all":
            pods[tally.block, tally.pod] += tally.consumed
    if not pods:
        yield Problem("no tally line of phase train, so nothing to hold against --expect-per-pod")
    for (block, pod), consumed in pods.items():
        if consumed != count:
            text = f"pod {pod} consumed {consumed}{starts.get(block, '')}, not {count} as --expect-per-pod says"
            yield Problem(text, f"{block[0]} epoch {block[1]}", frozenset([block]))


def fulfilled(tally: Tally) -> str:
    """What the `all` row of a block without a problem has shown."""
    return table.fulfilled(expected.size(tally) - tally.n)


def _named(count: int, indices: tuple[int, ...]) -> str:
    """`3 (17, 20, 21)`, or plainly that there are too many to name."""
    if not count:
        return "0"
    if not indices:
        return f"{count} (none named)"
    names = ", ".join(map(str, indices))
    if len(indices) < min(count, NAMED):  # a line names each sample once
        names += ", some more than once"
    elif len(indices) < count:
        names += f" and {count - len(indices)} more, too many to name"
    return f"{count} ({names})"


def _sources(sources: list[str]) -> str:
    shown = ", ".join(sources[:8]) + ", ..." * (len(sources) > 8)
    return shown if len(sources) == 1 else f"{len(sources)} logs: {shown}"
