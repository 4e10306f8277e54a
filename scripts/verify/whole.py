"""The last line of a run, held against what its own facts demand and against the run's other lines."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from torchtally.proof import digest, run_summary
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Order

from .closing import Closing
from .lines import Tally
from .problem import Problem
from .words import differing, numbers, who

# What tallies must have in common to be held against the last line together.
_FACTS = attrgetter("phase", "epoch", *("task", "plan", "seed", "n", "contract", "order", "data", "start", "world"))


def faults(last: Closing) -> Iterator[Problem]:
    """Where the line contradicts itself. Without one it proves, alone, the contracts of all phases and epochs."""
    for phase, stated in last.phases.items():
        epochs = last.plan[phase]
        consumed, together = _expected(last, phase)
        what = f"{numbers('epoch', range(1, epochs + 1))} of N {stated.n} under {stated.contract}"
        if stated.consumed != consumed:
            yield Problem(f"the last line says consumed {stated.consumed}, but {what} make {consumed}", phase)
        if names := differing(stated.digest, together):
            yield Problem(f"the last line's digest is not that of {what}: it differs in {names}", phase)


def superseded(last: Closing, tally: Tally) -> bool:
    """Whether a later attempt has done the tally's epoch again, since its samples were dealt in another way at last."""
    dealt = run_summary.dealt(tally.phase, tally.epoch, last.worlds)
    return tally.attempt < last.attempt and (tally.start, tally.world) != dealt


def contradictions(last: Closing, tallies: list[Tally]) -> Iterator[Problem]:
    """Where other lines say something else; of a phase of which all are there, what they add up to, too."""
    camps: dict[tuple[str, str, str, str], list[Tally]] = defaultdict(list)
    for _, group in groupby(tallies, _FACTS):
        alike = list(group)
        for phase, name, stated in _facts(last, alike[0]):
            said = getattr(alike[0], name)
            if said != stated:
                camps[phase, name, json.dumps(stated, sort_keys=True), json.dumps(said, sort_keys=True)] += alike
    for (phase, name, stated, said), camp in camps.items():
        whose = f"{who(tally.rank for tally in camp)} in {numbers('epoch', {tally.epoch for tally in camp})}"
        text = f"the last line says {name} {stated}, but {said} is what is said by {whose}"
        yield Problem(text, phase, frozenset(tally.block for tally in camp))
    for phase in last.phases:
        together = {tally.epoch: tally for tally in tallies if tally.phase == phase and tally.rank == "all"}
        if together.keys() == {*range(1, last.plan[phase] + 1)}:
            yield from _sum_faults(last, phase, list(together.values()))


def _facts(last: Closing, tally: Tally) -> Iterator[tuple[str, str, Any]]:
    """Phase, name and value of what the last line says of the tally's run and epoch."""
    yield from (("", name, getattr(last, name)) for name in ("task", "plan", "seed"))
    if tally.phase in last.phases:
        stated = last.phases[tally.phase]
        yield from ((tally.phase, name, getattr(stated, name)) for name in ("n", "contract", "order", "data"))
        start, world = run_summary.dealt(tally.phase, tally.epoch, last.worlds)
        yield from ((tally.phase, "start", start), (tally.phase, "world", world))


def _sum_faults(last: Closing, phase: str, together: list[Tally]) -> Iterator[Problem]:
    stated, of = last.phases[phase], "the lines of all ranks together"
    if stated.consumed != (consumed := sum(tally.consumed for tally in together)):
        yield Problem(f"the last line says consumed {stated.consumed}, but {of} add up to {consumed}", phase)
    folded = digest.fold(((tally.epoch, tally.digest) for tally in together), last.run)
    if names := differing(stated.digest, folded):
        yield Problem(f"the last line says another digest than {of} make: it differs in {names}", phase)


def _expected(last: Closing, phase: str) -> tuple[int, Digest]:
    stated = last.phases[phase]
    return run_summary.expected(
        last.run,
        phase,
        last.plan[phase],
        n=stated.n,
        contract=cast(Contract, stated.contract),
        order=cast(Order, stated.order),
        seed=last.seed,
        worlds=last.worlds,
    )
