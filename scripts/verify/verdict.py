"""Do the tallies of one run prove its contract? Every reason why not is one sentence."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from torchtally import table

from . import expected
from .lines import NAMED, Log, Tally

Block = tuple[str, int]  # phase, epoch
Rank = int | Literal["all"]


class UnknownRun(Exception):
    """--run names a run that left no line."""


@dataclass(frozen=True)
class Problem:
    text: str
    where: str = ""
    blocks: frozenset[Block] = frozenset()  # whose `all` row it marks

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass
class Verdict:
    run: str | None = None
    attempt: int | None = None
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
    runs = Counter(tally.run for tally in log.tallies.values())
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
    every = [tally for tally in log.tallies.values() if tally.run == run]
    last = max(tally.attempt for tally in every)
    for attempt, lines in sorted(Counter(tally.attempt for tally in every).items()):
        if attempt < last:
            verdict.notes.append(f"attempt {attempt} left {lines} lines; only the last attempt, {last}, counts")
    tallies = [tally for tally in every if tally.attempt == last]
    phases = {phase: place for place, phase in enumerate(tallies[0].plan)}

    def story(tally: Tally) -> tuple[float, ...]:
        place = phases.get(tally.phase, len(phases))
        return tally.epoch, place, float("inf") if tally.rank == "all" else tally.rank

    verdict.run, verdict.attempt, verdict.tallies = run, last, sorted(tallies, key=story)
    for complaint in log.complaints:
        if complaint.run in (None, run) and (complaint.attempt is None or complaint.attempt >= last):
            blocks = frozenset([complaint.block] if complaint.block else [])
            verdict.problems.append(Problem(complaint.text, "", blocks))
    verdict.problems += _compare(verdict.tallies)
    if expect_per_pod is not None:
        verdict.problems += _expect_per_pod(verdict.tallies, expect_per_pod)
    return verdict


def _compare(tallies: list[Tally]) -> list[Problem]:
    blocks: dict[Block, dict[Rank, Tally]] = defaultdict(dict)
    for tally in tallies:
        blocks[tally.block][tally.rank] = tally

    problems = list(_disagreements(tallies, "", ("task", "world", "plan")))
    if not problems:
        problems += _missing(blocks, tallies[0].world, tallies[0].plan)
    settled = not any(tally.world != tallies[0].world for tally in tallies)
    comparable: set[str] = set()
    for phase in dict.fromkeys(phase for phase, _ in blocks):
        own = [tally for tally in tallies if tally.phase == phase]
        found = list(_disagreements(own, phase, ("n", "seed", "contract", "order", "data")))
        problems += found
        if settled and not found:
            comparable.add(phase)

    for block, ranks in blocks.items():
        where = f"{block[0]} epoch {block[1]}"
        together = ranks.get("all")
        alone = [tally for rank, tally in ranks.items() if rank != "all"]
        texts: list[str] = []
        for tally in [together, *alone] if together else alone:
            texts += _faults(tally)
            if block[0] in comparable:
                texts += _digest_faults(tally)
        if together and block[0] in comparable and len(alone) == together.world:
            texts += _sum_faults(together, alone)
        problems += [Problem(text, where, frozenset([block])) for text in texts]
    return problems


def _disagreements(tallies: list[Tally], where: str, names: Iterable[str]) -> Iterator[Problem]:
    epochs = {tally.epoch for tally in tallies}
    for name in names:
        camps: dict[str, list[Tally]] = defaultdict(list)
        for tally in tallies:
            camps[json.dumps(getattr(tally, name), sort_keys=True)].append(tally)
        if len(camps) > 1:
            sides = []
            for value, camp in camps.items():
                when = {tally.epoch for tally in camp}
                in_epochs = f" in {_numbers('epoch', when)}" if where and when != epochs else ""
                sides.append(f"{value} ({who(tally.rank for tally in camp)}{in_epochs})")
            blocks = frozenset(tally.block for tally in tallies)
            yield Problem(f"the lines disagree on {name}: {', '.join(sides)}", where, blocks)


def _missing(blocks: dict[Block, dict[Rank, Tally]], world: int, plan: dict[str, int]) -> Iterator[Problem]:
    for phase, count in plan.items():
        seen = {epoch for name, epoch in blocks if name == phase}
        if count and not seen:
            yield Problem(f"no tally line of phase {phase} at all, {_numbers('epoch', range(1, count + 1))} planned")
        elif absent := set(range(1, count + 1)) - seen:
            yield Problem(f"no tally line of {_numbers('epoch', absent)}, {count} planned", phase)
    ranks: set[Rank] = {*range(world), "all"}
    if nowhere := ranks.difference(*blocks.values()):
        yield Problem(f"no tally line of {who(nowhere)} at all", "", frozenset(blocks))
    for block, present in blocks.items():
        if absent_ranks := ranks - nowhere - present.keys():
            yield Problem(f"no tally line of {who(absent_ranks)}", f"{block[0]} epoch {block[1]}", frozenset([block]))


def _faults(tally: Tally) -> Iterator[str]:
    """Where the counts of one line do not hold."""
    name = who([tally.rank])
    if tally.expected != (size := expected.size(tally)):
        yield (
            f"{name} expected {tally.expected}, but N {tally.n} over world size {tally.world} "
            f"under {tally.contract} makes {size}"
        )
    if tally.consumed != (sum_ := tally.expected - tally.lost + tally.doubled):
        yield (
            f"{name} consumed {tally.consumed}, which does not fit: "
            f"expected {tally.expected} - lost {tally.lost} + doubled {tally.doubled} = {sum_}"
        )
    if tally.lost or tally.doubled:
        lost, doubled = _named(tally.lost, tally.lost_indices), _named(tally.doubled, tally.doubled_indices)
        yield f"{name}: {lost} lost, {doubled} doubled"


def _digest_faults(tally: Tally) -> Iterator[str]:
    """Where the digest of one line does not fit what the line says was consumed."""
    name, whole = who([tally.rank]), expected.digest(tally)
    if len(tally.lost_indices) == tally.lost and len(tally.doubled_indices) == tally.doubled:
        fitting = whole - expected.digest_of(tally.lost_indices) + expected.digest_of(tally.doubled_indices)
        if tally.digest != fitting % expected.MODULUS:
            says = "the indices that it names as" if tally.lost or tally.doubled else "nothing"
            yield (
                f"{name} says {says} lost or doubled, but its digest is {tally.digest:016x} "
                f"where that makes {fitting % expected.MODULUS:016x}: other samples were consumed"
            )
    elif tally.digest == whole:
        yield f"{name} says that samples were lost or doubled, but its digest is that of the whole shard"


def _sum_faults(together: Tally, alone: list[Tally]) -> Iterator[str]:
    for name in ("expected", "consumed"):
        stated, sum_ = getattr(together, name), sum(getattr(tally, name) for tally in alone)
        if stated != sum_:
            yield f"all ranks together say {name} {stated}, but their lines add up to {sum_}"
    if together.digest != (digest := sum(tally.digest for tally in alone) % expected.MODULUS):
        yield f"all ranks together say digest {together.digest:016x}, but their lines add up to {digest:016x}"
    for name in ("lost", "doubled"):  # less is possible: what one rank lost, another may have consumed
        stated, sum_ = getattr(together, name), sum(getattr(tally, name) for tally in alone)
        if stated > sum_:
            yield f"all ranks together say {name} {stated}, but their lines add up to only {sum_}"


def _expect_per_pod(tallies: list[Tally], count: int) -> Iterator[Problem]:
    pods: dict[tuple[Block, str], int] = defaultdict(int)
    for tally in tallies:
        if tally.phase == "train" and tally.rank != "all":
            pods[tally.block, tally.pod] += tally.consumed
    if not pods:
        yield Problem("no tally line of phase train, so nothing to hold against --expect-per-pod")
    for (block, pod), consumed in pods.items():
        if consumed != count:
            text = f"pod {pod} consumed {consumed}, not {count} as --expect-per-pod says"
            yield Problem(text, f"{block[0]} epoch {block[1]}", frozenset([block]))


def fulfilled(tally: Tally) -> str:
    """What the `all` row of a block without a problem has shown."""
    return table.fulfilled(expected.size(tally) - tally.n)


def who(ranks: Iterable[Rank]) -> str:
    """`rank 2`, `ranks 0-2, 5`, `all ranks together`, or several of them."""
    given = set(ranks)
    numbers = {rank for rank in given if rank != "all"}
    parts = [_numbers("rank", numbers)] if numbers else []
    return " and ".join(parts + ["all ranks together"] * ("all" in given))


def _numbers(noun: str, values: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for value in sorted(values):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    plural = len(spans) > 1 or spans[0][0] < spans[0][1]
    return f"{noun}{'s' * plural} " + ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in spans)


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
