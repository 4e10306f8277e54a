"""The last line of a run: it proves on its own which samples the final weights have seen, and names the weights.

For each phase it holds the digests of all ranks together, folded over the epochs. Their expected value follows from
the line's own fields, so nothing else is needed: no line of an epoch, and no log of an earlier pod.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct, structs

from torchtally.proof import digest, drop_counts, rules
from torchtally.proof import order as orders
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.line import VERSION, Attempt
from torchtally.proof.order import DRAWN
from torchtally.proof.rules import HUGE, MANY, Maybe, Text, Wrong, integer
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.shards import Progression, Shard
from torchtally.proof.worlds import RESUMED, World, legs, misfit, place_of

_Many = Annotated[int, integer(0, HUGE * MANY)]  # samples of all epochs
_WORLDS = Meta(description="a list of [epoch, position, ranks]")


class PhaseSummary(drop_counts.Accounted, Struct, frozen=True, kw_only=True):
    """What all ranks together consumed in all epochs of a phase."""

    n: rules.Samples
    contract: Contract
    order: rules.Order
    data: Text
    consumed: _Many
    digest: rules.Digest  # folded
    sizes: Maybe[ShardSizes] = None  # that the order names, if there is room
    # Where the phase was shared out otherwise than by the run's `worlds`; it may resume in its middle, too.
    worlds: Maybe[Annotated[tuple[World, ...], _WORLDS]] = None
    # What the program has dropped, if anything: samples over all epochs, and their digest, folded.
    dropped: Maybe[Annotated[int, integer(1, HUGE * MANY)]] = None
    dropped_digest: Maybe[rules.Digest] = None
    dropped_in: Maybe[drop_counts.Stated] = None  # of several epochs, if there is room
    # Of the epochs that the contract does not tell: what samplers have drawn in them, and its digest, folded.
    drawn: Maybe[_Many] = None
    drawn_digest: Maybe[rules.Digest] = None
    # Epoch and position before which the phase ends: its plan is in steps, or the run has stopped before.
    end: Maybe[Annotated[tuple[int, int], Meta(description="[epoch, position]")]] = None

    @property
    def has_draws(self) -> bool:
        """Whether the contract does not tell what an epoch consumes: the last one that ends early, or all of them."""
        early = self.end is not None and self.end[1] > 0
        return self.order == DRAWN and (self.contract == "as_drawn" or early)

    def values(self) -> dict[str, Any]:
        """The fields that the line has, as JSON has them."""
        return {name: value for name, value in rules.printed(self).items() if value is not None}

    def wrong(self, epochs: int) -> Iterator[tuple[str, str]]:
        """The fields with a value that others rule out, in a plan of so many epochs."""
        yield from (("contract", allowed) for allowed in rules.contract(self))
        if self.sizes:
            yield from (("sizes", allowed) for allowed in rules.sizes(self))
        if self.worlds is not None:
            yield from (("worlds", allowed) for allowed in misfit(self.worlds, epochs, self.n))
        most = HUGE if self.order == DRAWN else self.n - 1
        if self.end and not (1 <= self.end[0] <= epochs and 0 <= self.end[1] <= most):
            yield "end", f"[epoch, position], up to epoch {epochs} and position {most}"


class RunSummary(Struct, frozen=True, kw_only=True):
    """What the final weights have seen, over all attempts."""

    run: Text
    attempt: rules.Count
    began: rules.Began = 0
    pod: Text
    task: Text
    phase: Literal["all"] = "all"
    plan: rules.Plan
    seed: rules.Seed
    worlds: Annotated[tuple[World, ...], _WORLDS]  # begins with (1, 0, ranks) and ascends
    phases: Annotated[Mapping[str, PhaseSummary], Meta(description="an object that has the phases of the plan")]
    # Why phases end before the last epoch of the plan: its steps are made, or the program has stopped the run.
    stopped: Maybe[Text] = None
    caveats: rules.Texts = ()  # what the proof leaves open: guards that were off, and more
    # "sha256:" and the hash of the final weights, if known
    model: Annotated[
        Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")] | None,
        Meta(description='null, or "sha256:" and 64 hexadecimal digits'),
    ]
    discarded: rules.Count  # samples that steps consumed which no checkpoint kept

    def printed(self) -> dict[str, Any]:
        """The fields that the line has."""
        phases = {name: phase.values() for name, phase in self.phases.items()}
        values = {"v": VERSION, **rules.printed(self), "phases": phases}
        absent = [name for name in ("stopped", "caveats") if not values[name]]
        return {name: value for name, value in values.items() if name not in absent}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The line with these values. Raises ValueError that names the field, its value and what is allowed."""
        found = rules.made(cls, values, _wrong)
        if found.stopped is None and (early := [name for name, phase in found.phases.items() if phase.end]):
            raise ValueError(f'"stopped" is missing, and it must say why {early[0]} ends before its last epoch does')
        for name, phase in found.phases.items():
            if {phase.has_draws} != {phase.drawn is not None, phase.drawn_digest is not None}:
                must = "must have drawn and drawn_digest" if phase.has_draws else "must have no drawn and drawn_digest"
                raise ValueError(f'"phases.{name}" {must}, by its order, its contract and its end')
        return structs.replace(found, phases={name: found.phases[name] for name in found.plan if name in found.phases})

    @property
    def attempt_began(self) -> Attempt:
        """Which attempt printed the line."""
        return self.attempt, self.began

    def epochs(self, phase: str) -> int:
        """Number of a phase's epochs, the last of which may end before its order does; 0 if it had not begun."""
        if phase not in self.phases:
            return 0
        end = self.phases[phase].end
        return self.plan[phase] if end is None else end[0] - (not end[1])

    def end(self, phase: str, epoch: int) -> int | None:
        """The position before which one of these epochs ends, if not that of its order."""
        end = self.phases[phase].end
        return end[1] if end and end[0] == epoch else None

    def dealt(self, phase: str, epoch: int) -> tuple[int, int]:
        """The position from which an epoch was shared out for the last time, and over how many ranks."""
        return place_of(epoch, *self._shared_out(phase))

    def expected(self, phase: str) -> tuple[int, Digest]:
        """How many samples all epochs of a phase consume under its contract, and their digests folded.

        O(len(worlds)), except for epochs in which samples of a shuffled order are repeated or left out: each has its
        own digest. Raises UnknownSizes where these need sizes of shard files that are not known.
        """
        return self.samples(phase), self._digest(phase)

    def samples(self, phase: str) -> int:
        """The first part of `expected` alone: O(len(worlds))."""
        told = sum(len(alike) * (shard.start + shard.total) for alike, shard in self._shards(phase))
        return told + (self.phases[phase].drawn or 0)

    def _digest(self, phase: str) -> Digest:
        stated, h, g = self.phases[phase], digest.base_of_epochs(self.run), digest.base(self.run)
        together = stated.of_drawn
        for alike, shard in self._shards(phase):
            if stated.order == "sequential" or shard.everything == {Progression(0, 1, stated.n): 1}:
                times = digest.geometric(Progression(alike[0] - 1, 1, len(alike)), h)
                together += digest.of_all_ranks(shard, g) * times
            else:
                each = ((epoch, digest.of_all_ranks(replace(shard, epoch=epoch), g)) for epoch in alike)
                together += digest.fold(each, self.run)
        return together

    def _shards(self, phase: str) -> Iterator[tuple[range, Shard]]:
        """Successive epochs that were shared out alike, and the first one's shard of rank 0.

        Without those that only draws tell.
        """
        stated, last = self.phases[phase], self.epochs(phase)
        if stated.contract == "as_drawn":
            return
        order = orders.parse(stated.order, stated.sizes)
        assert order
        any_ = Shard(n=stated.n, rank=0, world=1, contract=stated.contract, order=order, seed=self.seed, start=0)
        end = self.end(phase, last)
        for alike, start, world in legs(last, *self._shared_out(phase)):
            shard = replace(any_, epoch=alike[0], start=start, world=world)
            if end is None or alike[-1] < last:
                yield alike, shard
            else:
                if len(alike) > 1:
                    yield alike[:-1], shard
                if stated.order != DRAWN:
                    yield alike[-1:], replace(shard, epoch=last, end=end)

    def _shared_out(self, phase: str) -> tuple[Sequence[World], bool]:
        """The phase's worlds, and whether it resumed in its middle where they say so."""
        own = self.phases[phase].worlds
        return (self.worlds, phase == RESUMED) if own is None else (own, True)


def _wrong(line: RunSummary) -> Iterator[Wrong]:
    """The fields with a value that is not allowed, alone or beside the others."""
    yield from rules.misfits(line)
    planned = {name for name, epochs in line.plan.items() if epochs}
    begun = line.phases.keys()
    if not begun or not begun <= planned or (line.stopped is None and len(begun) < len(planned)):
        yield ("phases",), "an object that has the phases of the plan"
    for name, phase in line.phases.items():
        for (field,), allowed in rules.misfits(phase):
            yield ("phases", name, field), allowed
        yield from ((("phases", name, field), allowed) for field, allowed in phase.wrong(line.plan.get(name, 0)))
    n = line.phases[RESUMED].n if RESUMED in line.phases else 1
    yield from ((("worlds",), allowed) for allowed in misfit(line.worlds, max(line.plan.values()), n))


def is_summary(values: Mapping[str, Any]) -> bool:
    """Whether a line with these values is a run's last. A task may name a phase `all`: its lines have a rank."""
    return values.get("phase") == "all" and not values.keys() & {"epoch", "rank"}
