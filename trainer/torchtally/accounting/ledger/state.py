"""The state of an account: a position, which travels in the user's own checkpoint as a line of JSON.

It is the same on every rank. Which samples are in the weights follows from it, so it holds no tally: the digest of an
epoch in progress is computed again from the position.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Self

from torchtally.accounting.order.plan import Extent
from torchtally.proof import digest, drop_counts, rules
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.integers import are_in
from torchtally.proof.order import Order, sizes_of
from torchtally.proof.rules import HUGE, MANY, Rule, Values
from torchtally.proof.shard_sizes import ShardSizes, stated_runs
from torchtally.proof.worlds import World

VERSION = 1
Hash = tuple[str, int, int]  # of a parameter: data type, number of values, and the hash of these


def _or_null(rule: Rule) -> Rule:
    """The rule of a field that can also be null."""
    return lambda line, name: None if line.values.get(name, "") is None else rule(line, name)


def _numbers(allowed: str, *ranges: range) -> Rule:
    """The rule of a list of a few whole numbers."""

    def rule(line: Values, name: str) -> tuple[int, ...]:
        if are_in(value := line.values.get(name), *ranges):
            return tuple(value)
        raise line.bad(name, allowed)

    return rule


_drawn, _digest = _numbers("[samples, hash]", range(HUGE), range(HUGE)), _or_null(rules.packed_digest)
_end = _or_null(_numbers("[epoch, position] or null", range(MANY + 1), range(HUGE)))


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far an epoch's order is consumed: `steps` steps of `batch` samples by `world` ranks, from `start` on.

    In an order that is drawn, `start` is a number of batches, and `batch` the size of the largest step.
    """

    epoch: Annotated[int, rules.integer(1, MANY)]
    start: Annotated[int, rules.integer(0, HUGE)]
    steps: Annotated[int, rules.integer(0, HUGE)]
    batch: Annotated[int, rules.integer(1, HUGE)]  # samples a step, of all ranks together
    world: Annotated[int, rules.world]
    dropped: Annotated[bytes | None, _digest] = None  # digest of what the program has dropped in the epoch so far
    drawn: Annotated[tuple[int, int] | None, _drawn] = None  # of the steps, in an order that is drawn: `Draw.drawn`

    @property
    def consumed(self) -> int:
        """Samples of the order that all ranks have consumed, as if it had no end."""
        if self.drawn is not None:
            return self.drawn[0]
        return self.start + self.steps * self.batch


def _position(line: Values, name: str) -> Position:
    value = line.values.get(name)
    if not isinstance(value, dict):
        raise line.bad(name, "an object or null")
    return Position(**rules.checked(Position, Values(value, f"{name}.")))


def _positions(line: Values, name: str) -> tuple[Position, ...]:
    value = line.values.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise line.bad(name, "a list of objects")
    return tuple(_position(Values({name: each}), name) for each in value)


def _contents(line: Values, name: str) -> tuple[tuple[int, ...], ...]:
    value = line.values.get(name)
    if isinstance(value, list) and all(
        isinstance(each, list) and are_in(each, *[range(HUGE)] * len(each)) for each in value
    ):
        return tuple(map(tuple, value))
    raise line.bad(name, "a list of lists of whole numbers")


def _worlds(line: Values, name: str) -> tuple[World, ...]:
    value, allowed = line.values.get(name), (range(MANY + 1), range(HUGE), range(MANY + 1))
    if isinstance(value, list) and value and all(are_in(each, *allowed) for each in value):
        return tuple((epoch, position, ranks) for epoch, position, ranks in value)
    raise line.bad(name, "a list of [epoch, position, ranks]")


def _extents(line: Values, name: str) -> dict[str, Extent]:
    value, given = line.values.get(name), line.values.get("plan")
    stated = value if isinstance(value, dict) and isinstance(given, dict) and value.keys() == given.keys() else None
    if stated is not None and all(_is_extent(each) for each in stated.values()):
        return {phase: (epochs, end) for phase, (epochs, end) in stated.items()}
    raise line.bad(name, "an object that gives each phase of the plan [epochs, end]")


def _is_extent(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    epochs, end = value
    return type(epochs) is int and 0 <= epochs <= MANY and (end is None or (type(end) is int and 0 < end < HUGE))


def _given(line: Values, name: str) -> dict[str, Any]:
    value = line.values.get(name)
    if isinstance(value, dict):
        return value
    raise line.bad(name, "an object that gives each phase its plan")


@dataclass(frozen=True, kw_only=True)
class PhaseState:
    """A phase: its data, what its completed epochs have consumed, and the position in the epoch after those."""

    n: Annotated[int, rules.samples]
    contract: Annotated[Contract, rules.contract]
    order: Annotated[str, rules.order]
    data: Annotated[str, rules.text]
    completed: Annotated[int, rules.integer(0, MANY)]  # epochs
    consumed: Annotated[int, rules.integer(0, HUGE * MANY)]  # samples in those
    digest: Annotated[bytes, rules.packed_digest]  # of those, folded
    worlds: Annotated[tuple[World, ...], _worlds]
    end: Annotated[tuple[int, int] | None, _end]  # epoch and position where the phase has ended before its plan
    position: Annotated[Position | None, _or_null(_position)]  # None between two epochs
    sizes: Annotated[ShardSizes | None, rules.shard_sizes] = None  # that the order names; in a text, if there is room
    dropped: Annotated[int, rules.integer(0, HUGE * MANY)] = 0  # samples in the completed epochs, by the program
    dropped_digest: Annotated[bytes | None, _digest] = None  # of those, folded
    dropped_in: Annotated[drop_counts.Runs, drop_counts.in_epochs] = ()  # the same by epoch; empty if not known
    drawn: Annotated[int, rules.integer(0, HUGE * MANY)] = (
        0  # samples of completed epochs whose lines have drawn_digest
    )
    drawn_digest: Annotated[bytes | None, _digest] = None  # of those, folded
    before: Annotated[int | None, rules.integer(0, MANY)] = None  # epochs made before the first of `Account.epochs`
    contents: Annotated[tuple[tuple[int, ...], ...], _contents] = ()  # of a few samples, as `guards.contents` has them
    ahead: Annotated[tuple[Position, ...], _positions] = ()  # in the epochs after that of `position`, if it is complete

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
        others = (each for each in self.worlds if each[:2] != (epoch, start))
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


def _phases(line: Values, name: str) -> dict[str, PhaseState]:
    value, planned = line.values.get(name), _given(line, "plan")
    if not isinstance(value, dict) or not value.keys() <= planned.keys():
        raise line.bad(name, "an object of the plan's phases")
    found = {}
    for phase, own in value.items():
        if not isinstance(own, dict):
            raise Values(value, f"{name}.").bad(phase, "an object")
        found[phase] = PhaseState(**rules.checked(PhaseState, Values(own, f"{name}.{phase}.")))
    return found


def _weights(line: Values, name: str) -> tuple[Hash, ...]:
    value = line.values.get(name)
    if isinstance(value, list) and all(_is_hash(each) for each in value):
        return tuple((kind, size, found) for kind, size, found in value)
    raise line.bad(name, "a list of [data type, number of values, hash]")


def _is_hash(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, int, int]


def _stated(part: Any) -> Any:
    """A part of a state as JSON has it. A field that has its default is left out."""
    if isinstance(part, bytes):
        return digest.as_text(part)
    if isinstance(part, ShardSizes):
        return stated_runs(part)
    if isinstance(part, Mapping):
        return {name: _stated(each) for name, each in part.items()}
    if isinstance(part, tuple):
        return [*map(_stated, part)]
    if not is_dataclass(part):
        return part
    found = {each: _stated(getattr(part, each.name)) for each in fields(part)}
    return {each.name: value for each, value in found.items() if value != _stated(each.default)}


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a run: its identity, and how far each phase is."""

    run: Annotated[str, rules.text]
    attempt: Annotated[int, rules.attempt]
    task: Annotated[str, rules.text]
    seed: Annotated[int, rules.seed]
    plan: Annotated[Mapping[str, Any], _given]  # as the program has given it
    extents: Annotated[Mapping[str, Extent], _extents]  # how far it reaches, with the batch of the beginning
    stopped: Annotated[str | None, _or_null(rules.text)]
    phases: Annotated[Mapping[str, PhaseState], _phases]  # those that have begun
    # The epoch in whose batch loop the state was made, if the phases do not show it: a resume finishes its body.
    unfinished: Annotated[int | None, rules.integer(1, MANY)] = None
    over: Annotated[int | None, rules.integer(1, MANY)] = None  # the completed epoch whose body the program has left
    weights: Annotated[tuple[Hash, ...], _weights] = ()  # a few parameters of the same moment
    caveats: Annotated[tuple[str, ...], rules.texts] = ()  # what the run's last line says beside its proof

    @property
    def reached(self) -> tuple[int, int]:
        """The epoch in progress of the plan's first phase, and how many of its samples are consumed."""
        first = self.phases.get(next(iter(self.plan), ""))
        if first is None:
            return 1, 0
        return first.completed + max(1, len(first.positions)), first.positions[-1].consumed if first.positions else 0

    def to_text(self) -> str:
        """The state as JSON."""
        return json.dumps({"v": VERSION, **_stated(self)}, separators=(",", ":"))

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
        return cls(**rules.checked(cls, Values(values)))
