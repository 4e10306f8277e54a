"""The last line of a run: it proves on its own which samples the final weights have seen, and names the weights.

For each phase it holds the digests of all ranks together, folded over the epochs. Their expected value follows from
the line's own fields, so nothing else is needed: no line of an epoch, and no log of an earlier pod.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self

from torchtally.proof import digest, drop_counts, rules
from torchtally.proof import order as orders
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.integers import are_in
from torchtally.proof.line import VERSION, Attempt
from torchtally.proof.order import DRAWN
from torchtally.proof.rules import HUGE, MANY, Values
from torchtally.proof.shard_sizes import ShardSizes, stated_runs
from torchtally.proof.shards import Progression, Shard
from torchtally.proof.worlds import RESUMED, World, legs, place_of, worlds_in

_EPOCHS = "epochs of the plan"  # for the rules of a phase's fields
_MODEL = re.compile(r"sha256:[0-9a-f]{64}")


def _worlds_of_phase(line: Values, name: str) -> tuple[World, ...]:
    return worlds_in(line, name, line.values[_EPOCHS], rules.samples(line, "n"))


def _end_of_phase(line: Values, name: str) -> tuple[int, int]:
    stated, epochs = line.values.get(name), line.values[_EPOCHS]
    most = HUGE if line.values.get("order") == DRAWN else rules.samples(line, "n") - 1
    if are_in(stated, range(1, epochs + 1), range(most + 1)):
        epoch, position = stated
        return epoch, position
    raise line.bad(name, f"[epoch, position], up to epoch {epochs} and position {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary(drop_counts.Accounted):
    """What all ranks together consumed in all epochs of a phase."""

    n: Annotated[int, rules.samples]
    contract: Annotated[Contract, rules.contract]
    order: Annotated[str, rules.order]
    data: Annotated[str, rules.text]
    consumed: Annotated[int, rules.integer(0, HUGE * MANY)]
    digest: Annotated[bytes, rules.packed_digest]  # folded and packed; base64 in the line
    sizes: Annotated[ShardSizes | None, rules.shard_sizes] = None  # that the order names, if there is room
    # Where the phase was shared out otherwise than by the run's `worlds`; it may resume in its middle, too.
    worlds: Annotated[tuple[World, ...] | None, _worlds_of_phase] = None
    # What the program has dropped, if anything: samples over all epochs, and their digest, folded.
    dropped: Annotated[int | None, rules.integer(1, HUGE * MANY)] = None
    dropped_digest: Annotated[bytes | None, rules.packed_digest] = None
    dropped_in: Annotated[drop_counts.Runs | None, drop_counts.in_epochs] = None  # of several epochs, if there is room
    # Of the epochs that the contract does not tell: what samplers have drawn in them, and its digest, folded.
    drawn: Annotated[int | None, rules.integer(0, HUGE * MANY)] = None
    drawn_digest: Annotated[bytes | None, rules.packed_digest] = None
    # Epoch and position before which the phase ends: its plan is in steps, or the run has stopped before.
    end: Annotated[tuple[int, int] | None, _end_of_phase] = None

    @property
    def has_draws(self) -> bool:
        """Whether the contract does not tell what an epoch consumes: the last one that ends early, or all of them."""
        early = self.end is not None and self.end[1] > 0
        return self.order == DRAWN and (self.contract == "as_drawn" or early)

    def values(self) -> dict[str, Any]:
        """The fields that the line has, as JSON has them."""
        values = _values(self) | {"digest": digest.as_text(self.digest)}
        lists = {
            "worlds": self.worlds and [list(world) for world in self.worlds],
            "end": self.end and list(self.end),
            "sizes": stated_runs(self.sizes),
            "dropped_digest": self.dropped_digest and digest.as_text(self.dropped_digest),
            "drawn_digest": self.drawn_digest and digest.as_text(self.drawn_digest),
            "dropped_in": self.dropped_in and [list(run) for run in self.dropped_in],
        }
        return {name: value for name, value in (values | lists).items() if value is not None}


def _phases(line: Values, name: str) -> dict[str, PhaseSummary]:
    plan = rules.plan(line, "plan")
    planned = [phase for phase, epochs in plan.items() if epochs]
    stated = line.values.get(name)
    may_lack = "stopped" in line.values  # phases that had not begun
    fits = isinstance(stated, dict) and {*stated} <= {*planned} and (may_lack or len(stated) == len(planned))
    if not isinstance(stated, dict) or not stated or not fits:
        raise line.bad(name, "an object that has the phases of the plan")
    for phase in stated:
        if not isinstance(stated[phase], dict):
            raise Values(stated, f"{name}.").bad(phase, "an object")
    return {
        phase: PhaseSummary(
            **rules.checked(PhaseSummary, Values({**stated[phase], _EPOCHS: plan[phase]}, f"{name}.{phase}."))
        )
        for phase in planned
        if phase in stated
    }


def _worlds(line: Values, name: str) -> tuple[World, ...]:
    phases = _phases(line, "phases")
    n = phases[RESUMED].n if RESUMED in phases else 1
    return worlds_in(line, name, max(line.values["plan"].values()), n)


_model = rules.fitting(
    lambda value: value is None or (isinstance(value, str) and _MODEL.fullmatch(value)),
    'null, or "sha256:" and 64 hexadecimal digits',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What the final weights have seen, over all attempts."""

    run: Annotated[str, rules.text]
    attempt: Annotated[int, rules.attempt]
    began: Annotated[int, rules.began] = 0
    pod: Annotated[str, rules.text]
    task: Annotated[str, rules.text]
    phase: Annotated[str, rules.choice(("all",))] = "all"
    plan: Annotated[Mapping[str, int], rules.plan]
    seed: Annotated[int, rules.seed]
    worlds: Annotated[tuple[World, ...], _worlds]  # begins with (1, 0, ranks) and ascends
    phases: Annotated[Mapping[str, PhaseSummary], _phases]
    # Why phases end before the last epoch of the plan: its steps are made, or the program has stopped the run.
    stopped: Annotated[str | None, rules.text] = None
    caveats: Annotated[tuple[str, ...], rules.texts] = ()  # what the proof leaves open: guards that were off, and more
    model: Annotated[str | None, _model]  # "sha256:" and the hash of the final weights, if known
    discarded: Annotated[int, rules.integer(0, HUGE)]  # samples that steps consumed which no checkpoint kept

    def printed(self) -> dict[str, Any]:
        """The fields that the line has."""
        phases = {name: phase.values() for name, phase in self.phases.items()}
        worlds = [list(world) for world in self.worlds]
        values = {"v": VERSION, **_values(self)} | {"phases": phases, "worlds": worlds}
        if self.stopped is None:
            del values["stopped"]
        if self.caveats:
            values["caveats"] = [*self.caveats]
        else:
            del values["caveats"]
        return values

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The line with these values. Raises ValueError that names the field, its value and what is allowed."""
        found = cls(**rules.checked(cls, Values(values)))
        if found.stopped is None and (early := [name for name, phase in found.phases.items() if phase.end]):
            raise ValueError(f'"stopped" is missing, and it must say why {early[0]} ends before its last epoch does')
        for name, phase in found.phases.items():
            if {phase.has_draws} != {phase.drawn is not None, phase.drawn_digest is not None}:
                must = "must have drawn and drawn_digest" if phase.has_draws else "must have no drawn and drawn_digest"
                raise ValueError(f'"phases.{name}" {must}, by its order, its contract and its end')
        return found

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


def is_summary(values: Mapping[str, Any]) -> bool:
    """Whether a line with these values is a run's last. A task may name a phase `all`: its lines have a rank."""
    return values.get("phase") == "all" and not values.keys() & {"epoch", "rank"}


def _values(of: Any) -> dict[str, Any]:
    return {each.name: getattr(of, each.name) for each in fields(of)}
