"""The last line of a run, against its own fields and against the run's other lines."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from torchtally.proof import digest
from torchtally.proof.digest import unpack
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary

from .phrasing import differing, numbers, who
from .problem import Problem

# Lines that agree in these are compared with the last line together.
_FACTS = attrgetter("phase", "epoch", *("task", "plan", "seed", "n", "contract", "order", "data", "start", "world"))


def faults(last: RunSummary) -> Iterator[Problem]:
    """Contradictions within the line. Without any, it proves the contracts of all phases and epochs on its own."""
    for phase, stated in last.phases.items():
        epochs = last.plan[phase]
        consumed, together = last.expected(phase)
        what = f"{numbers('epoch', range(1, epochs + 1))} of N {stated.n} under {stated.contract}"
        if stated.consumed != consumed:
            yield Problem(f"the last line reports consumed {stated.consumed}, but {what} make {consumed}", phase)
        if names := differing(unpack(stated.digest), together):
            yield Problem(f"the last line's digest is not that of {what}: it differs in {names}", phase)


def superseded(last: RunSummary, line: TallyLine) -> bool:
    """Whether a later attempt did the line's epoch again: its samples were shared out differently at last."""
    dealt = last.dealt(line.phase, line.epoch)
    return line.attempt < last.attempt and (line.start, line.world) != dealt


def contradictions(last: RunSummary, lines: list[TallyLine]) -> Iterator[Problem]:
    """Contradictions with other lines; of a phase whose lines are complete, with their sum, too."""
    camps: dict[tuple[str, str, str, str], list[TallyLine]] = defaultdict(list)
    for _, group in groupby(lines, _FACTS):
        alike = list(group)
        for phase, name, stated in _facts(last, alike[0]):
            found = getattr(alike[0], name)
            if found != stated:
                camps[phase, name, json.dumps(stated, sort_keys=True), json.dumps(found, sort_keys=True)] += alike
    for (phase, name, stated, found), camp in camps.items():
        whose = f"{who(line.rank for line in camp)} in {numbers('epoch', {line.epoch for line in camp})}"
        text = f"the last line reports {name} {stated}, but {found} is in the lines of {whose}"
        yield Problem(text, phase, frozenset(line.block for line in camp))
    for phase in last.phases:
        together = {line.epoch: line for line in lines if line.phase == phase and line.rank == "all"}
        if together.keys() == {*range(1, last.plan[phase] + 1)}:
            yield from _sum_faults(last, phase, list(together.values()))


def _facts(last: RunSummary, line: TallyLine) -> Iterator[tuple[str, str, Any]]:
    """Phase, name and value of the last line's facts about a line's run and epoch."""
    yield from (("", name, getattr(last, name)) for name in ("task", "plan", "seed"))
    if line.phase in last.phases:
        stated = last.phases[line.phase]
        yield from ((line.phase, name, getattr(stated, name)) for name in ("n", "contract", "order", "data"))
        start, world = last.dealt(line.phase, line.epoch)
        yield from ((line.phase, "start", start), (line.phase, "world", world))


def _sum_faults(last: RunSummary, phase: str, together: list[TallyLine]) -> Iterator[Problem]:
    stated, of = last.phases[phase], "the lines of all ranks together"
    if stated.consumed != (consumed := sum(line.consumed for line in together)):
        yield Problem(f"the last line reports consumed {stated.consumed}, but {of} add up to {consumed}", phase)
    folded = digest.fold(((line.epoch, line.consumed_digest) for line in together), last.run)
    if names := differing(unpack(stated.digest), folded):
        yield Problem(f"the last line's digest is not the sum of {of}: it differs in {names}", phase)
