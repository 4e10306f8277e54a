"""The state of an account: a position, which travels in the user's own checkpoint as a line of JSON.

It is the same on every rank. Which samples are in the weights follows from it, so it holds no tally: the digest of an
epoch in progress is computed again from the position.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from torchtally.accounting.order.plan import Extent
from torchtally.accounting.order.position import Epochs, Packed, Position, Whole
from torchtally.proof import digest, drop_counts, rules
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.order import Order, sizes_of
from torchtally.proof.shard_sizes import ShardSizes, stated_runs
from torchtally.proof.worlds import World

VERSION = 1
Hash = tuple[str, int, int]  # of a parameter: data type, number of values, and the hash of these


@dataclass(frozen=True, kw_only=True)
class PhaseState:
    """A phase: its data, what its completed epochs have consumed, and the position in the epoch after those."""

    n: Annotated[int, Meta(ge=1)]
    contract: Contract
    order: str
    data: str
    completed: Epochs  # epochs
    consumed: Whole  # samples in those
    digest: Packed  # of those, folded
    worlds: tuple[World, ...]
    end: tuple[Epochs, Whole] | None  # epoch and position where the phase has ended before its plan
    position: Position | None  # None between two epochs
    sizes: ShardSizes | None = None  # that the order names; in a text, if there is room
    dropped: Whole = 0  # samples in the completed epochs, by the program
    dropped_digest: Packed | None = None  # of those, folded
    dropped_in: drop_counts.Runs = ()  # the same by epoch; empty if not known
    drawn: Whole = 0  # samples of completed epochs whose lines have drawn_digest
    drawn_digest: Packed | None = None  # of those, folded
    before: Epochs | None = None  # epochs made before the first of `Account.epochs`
    contents: tuple[tuple[int, ...], ...] = ()  # of a few samples, as `guards.contents` has them
    ahead: tuple[Position, ...] = ()  # in the epochs after that of `position`, if it is complete

    @classmethod
    def beginning(cls, *, n: int, contract: Contract, order: Order, data: str) -> Self:
        """A phase without an epoch yet."""
        return cls(
            n=n,
            contract=contract,
            order=str(order),
            sizes=sizes_of(order),
            data=data,
            completed=0,
            consumed=0,
            digest=Digest().packed,
            worlds=(),
            end=None,
            position=None,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change within a run."""
        return {"number of samples": self.n, "contract": self.contract, "order": self.order, "data": self.data}

    @property
    def positions(self) -> tuple[Position, ...]:
        """Those of the epochs in progress. All but the last are complete, and not proved yet."""
        return (self.position, *self.ahead) if self.position else ()

    @property
    def accounted(self) -> int:
        """Samples of the completed epochs that were consumed or dropped."""
        return self.consumed + self.dropped

    def shared_out(self, epoch: int, start: int, world: int) -> Self:
        """The phase after `world` ranks have shared out an epoch in progress from position `start` on."""
        since, position, ranks = self.worlds[-1] if self.worlds else (0, 0, 0)
        if (position if since == epoch else 0, ranks) == (start, world):
            return self
        others = (each for each in self.worlds if each[:2] < (epoch, start))
        return replace(self, worlds=(*others, (epoch, start, world)))

    def after(self, line: Mapping[str, Any]) -> Self:
        """The phase after one more epoch, of which this is the line of all ranks together."""
        return replace(
            self,
            drawn=self.drawn + (line["expected"] if "drawn_digest" in line else 0),
            drawn_digest=_folded(self.drawn_digest, line, "drawn_digest"),
            completed=self.completed + 1,
            consumed=self.consumed + line["consumed"],
            digest=_folded(self.digest, line, "digest") or Digest().packed,
            dropped=self.dropped + line.get("dropped", 0),
            dropped_digest=_folded(self.dropped_digest, line, "dropped_digest"),
            dropped_in=self._dropped_in(line.get("dropped", 0)),
            position=self.ahead[0] if self.ahead else None,
            ahead=self.ahead[1:],
        )

    def _dropped_in(self, samples: int) -> drop_counts.Runs:
        """The dropped samples by epoch, after one more epoch; empty until an epoch has dropped any."""
        if not self.dropped_in and (self.dropped or not samples):
            return ()
        before = self.dropped_in or (((self.completed, 0),) if self.completed else ())
        after = drop_counts.extended(before, samples)
        return after if len(after) <= drop_counts.STATED else ()


def _folded(before: bytes | None, line: Mapping[str, Any], name: str) -> bytes | None:
    """The digest of epochs and of one more, whose line may have one; None if nothing is in it."""
    found = digest.unpack(before) if before else Digest()
    if name in line:
        found += digest.fold([(line["epoch"], digest.parse(line[name]))], line["run"])
    return found.packed if any(found.words) else None


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a run: its identity, and how far each phase is."""

    run: str
    attempt: Whole
    task: str
    seed: Whole
    plan: Mapping[str, Any]  # as the program has given it
    extents: Mapping[str, Extent]  # how far it reaches, with the batch of the beginning
    stopped: str | None
    phases: Mapping[str, PhaseState]  # those that have begun
    # The epoch in whose batch loop the state was made, if the phases do not show it: a resume finishes its body.
    unfinished: Epochs | None = None
    # The epoch in whose body it was made, and the evaluations that this body has made outside of its batch loops.
    evaluated: tuple[Epochs, Mapping[str, tuple[Whole, ...]]] | None = None
    weights: tuple[Hash, ...] = ()  # a few parameters of the same moment
    caveats: tuple[str, ...] = ()  # what the run's last line says beside its proof

    @property
    def reached(self) -> tuple[int, int]:
        """The epoch in progress of the plan's first phase, and how many of its samples are consumed."""
        first = self.phases.get(next(iter(self.plan), ""))
        if first is None:
            return 1, 0
        return first.completed + max(1, len(first.positions)), first.positions[-1].consumed if first.positions else 0

    def to_text(self) -> str:
        """The state as JSON."""
        return json.dumps({"v": VERSION, **msgspec.to_builtins(self, enc_hook=stated_runs)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: object) -> Self:
        """The state in a text that `to_text` made. Raises ValueError that says what is wrong with it."""
        if not isinstance(text, str):
            raise ValueError(f"it must be a text, not a {type(text).__name__}")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"it is cut off or damaged: {rules.short(text, 60)!r}") from None
        if not isinstance(values, dict):
            raise ValueError(f"it must be an object, not {rules.short(text, 60)!r}")
        if values.get("v") != VERSION:
            raise ValueError(f"its version is {rules.show(values.get('v'))}, and this release reads {VERSION}")
        try:
            return msgspec.convert(values, cls, dec_hook=lambda _, runs: ShardSizes.of_runs(runs))
        except msgspec.ValidationError as error:
            raise ValueError(f"no state has this: {error}") from None
