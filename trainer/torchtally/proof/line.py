"""The format of a tally line: its prefix, its version, and its fields with their types and rules.

This is the only place that lists them: the trainer fills in a TallyLine, and the verifier parses one. An added field
needs a default, with which lines that lack it are read; None is not printed. The version then stays the same. A field
with another meaning needs another version.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, Self

from torchtally.proof import digest, interleaving, rules
from torchtally.proof import order as orders
from torchtally.proof.contract import Contract
from torchtally.proof.drop_counts import Accounted
from torchtally.proof.integers import are_in
from torchtally.proof.interleaving import Counts
from torchtally.proof.modular import P
from torchtally.proof.order import DRAWN
from torchtally.proof.rules import HUGE, Rule, Values
from torchtally.proof.shard_sizes import ShardSizes, stated_runs
from torchtally.proof.shards import Shard

PREFIX = "TORCHTALLY "
VERSION = 2
NAMED = 8  # lost and duplicated samples that a line names at most: enough to look one up, and it stays under 1 KB

Attempt = tuple[int, int]  # number and begin: one that kept no checkpoint has its number used again by the next
Rank = int | Literal["all"]
OF_A_RANK = "differs from rank to rank"


def _phase(line: Values, name: str) -> str:
    return str(rules.choice(tuple(rules.plan(line, "plan")))(line, name))


def _epoch(line: Values, name: str) -> int:
    return line.integer(name, 1, rules.plan(line, "plan")[line.values["phase"]])


def _rank(line: Values, name: str) -> Rank:
    if line.values.get(name) == "all":
        return "all"
    world = rules.world(line, "world")
    try:
        return line.integer(name, 0, world - 1)
    except ValueError as error:
        whole = f'{error} (world is {world}), or "all"'
        raise ValueError(whole if name in line.values else str(error)) from None


def _start(line: Values, name: str) -> int:
    return line.integer(name, 0, 0 if line.values.get("order") == DRAWN else rules.samples(line, "n"))


def _end(line: Values, name: str) -> int:
    most = HUGE if line.values.get("order") == DRAWN else rules.samples(line, "n") - 1
    return line.integer(name, min(max(1, _start(line, "start")), most), most)


def _drawn(line: Values, name: str) -> bytes:
    if line.values.get("order") != DRAWN:
        raise line.bad(name, "nothing: it is for the order drawn")
    return rules.packed_digest(line, name)


def _mixture(line: Values, name: str) -> dict[str, Counts]:
    value = line.values.get(name)
    if line.values.get("order") == "sequential" and isinstance(value, dict) and value:
        counts = {str(source): tuple(each) for source, each in value.items() if _is_counts(source, each)}
        if len(counts) == len(value) and sum(weight for weight, _, _ in counts.values()) <= interleaving.MOST:
            return counts
    raise line.bad(name, "an object that gives each source [weight, samples, rows], in the order sequential")


def _is_counts(source: Any, value: Any) -> bool:
    return rules.is_text(source) and are_in(value, range(1, interleaving.MOST + 1), range(1, HUGE), range(HUGE))


def _count(other: str) -> Rule:
    def rule(line: Values, name: str) -> int | None:
        if name in line.values and line.values[name] is None:
            if line.values.get(other, 0) is None:
                return None
            raise line.bad(name, f'an integer from 0 to {HUGE}, or null where "{other}" is null too')
        return line.integer(name, 0, HUGE)

    return rule


def _named(counted: str, low: int, high: int | None) -> Rule:
    def rule(line: Values, name: str) -> tuple[int, ...]:
        value, most = line.values[name], min(line.values[counted] or 0, NAMED)
        end = line.values["n"] - 1 if high is None else high
        if isinstance(value, list) and len(value) <= most and all(type(i) is int and low <= i <= end for i in value):
            return tuple(value)
        raise line.bad(name, f"a list of at most {most} integers from {low} to {end}")

    return rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyLine(Accounted):
    """What one rank, or all of them together, consumed in one phase of one epoch."""

    run: Annotated[str, rules.text]  # the run's id
    attempt: Annotated[int, rules.attempt]  # restarts of the run so far
    began: Annotated[int, rules.began] = 0  # when rank 0 began the attempt; tells attempts of the same number apart
    pod: Annotated[str, rules.text, OF_A_RANK]
    task: Annotated[str, rules.text]
    phase: Annotated[str, _phase]
    epoch: Annotated[int, _epoch]
    plan: Annotated[Mapping[str, int], rules.plan]  # phase -> epochs of it that the run will make
    rank: Annotated[Rank, _rank, OF_A_RANK]  # "all" ranks together, or one of them
    world: Annotated[int, rules.world]
    n: Annotated[int, rules.samples]  # of the dataset
    start: Annotated[int, _start]  # the position of the order from which these ranks share the samples
    batch: Annotated[int, rules.integer(1, HUGE)]  # samples a step, of all ranks together
    end: Annotated[int | None, _end] = None  # the position before which the epoch ends, if not that of its order
    seed: Annotated[int, rules.seed]
    contract: Annotated[Contract, rules.contract]
    order: Annotated[str, rules.order]
    sizes: Annotated[ShardSizes | None, rules.shard_sizes, OF_A_RANK] = None  # of "all" alone, if there is room
    data: Annotated[str, rules.text]  # the data's fingerprint
    expected: Annotated[
        int, rules.integer(0, HUGE), OF_A_RANK
    ]  # samples; of "all", with those before `start`, as are ...
    consumed: Annotated[int, rules.integer(0, HUGE), OF_A_RANK]  # ... these, repeats counted
    digest: Annotated[bytes, rules.packed_digest, OF_A_RANK]  # packed; base64 in the line
    # What the program has dropped of `expected`, if anything: how many samples, and their digest. Of "all", with those
    # before `start`. They are not in `consumed` and `digest`.
    dropped: Annotated[int | None, rules.integer(1, HUGE), OF_A_RANK] = None
    dropped_digest: Annotated[bytes | None, rules.packed_digest, OF_A_RANK] = None
    # In the order `drawn`: the digest of what the samplers have drawn, which is what is expected. Of "all", only where
    # nothing else tells: under `as_drawn`, and of an epoch that ends early.
    drawn_digest: Annotated[bytes | None, _drawn, OF_A_RANK] = None
    # Of a mixture: weight, samples, and rows of each source; of "all" alone.
    mixture: Annotated[Mapping[str, Counts] | None, _mixture, OF_A_RANK] = None
    lost: Annotated[int | None, _count("duplicated"), OF_A_RANK]  # samples; both are null if too many to count
    duplicated: Annotated[int | None, _count("lost"), OF_A_RANK]
    # Some of them, and only where `lost` or `duplicated` is not 0. A duplicated index may lie outside of the dataset.
    lost_indices: Annotated[tuple[int, ...], _named("lost", 0, None), OF_A_RANK] = ()
    duplicated_indices: Annotated[tuple[int, ...], _named("duplicated", -HUGE, HUGE - 1), OF_A_RANK] = ()

    @property
    def block(self) -> tuple[str, int]:
        """The phase and epoch."""
        return self.phase, self.epoch

    @property
    def attempt_began(self) -> Attempt:
        """Which attempt printed the line."""
        return self.attempt, self.began

    @property
    def shard(self) -> Shard:
        """The shard that the line is about; of "all", rank 0's."""
        order = orders.parse(self.order, self.sizes)
        assert order
        return Shard(
            n=self.n,
            rank=0 if self.rank == "all" else self.rank,
            world=self.world,
            contract=self.contract,
            order=order,
            seed=self.seed,
            epoch=self.epoch,
            start=self.start,
            end=self.end,
        )

    @property
    def rows_of_sources(self) -> Mapping[str, Counts] | None:
        """What `mixture` must be by the other fields; None without a mixture."""
        return None if self.mixture is None else interleaving.stated(self.mixture).counts(self.shard)

    @property
    def sources(self) -> list[str]:
        """A sentence on each source of a mixture."""
        return [] if self.mixture is None else interleaving.described(self.mixture, self.shard)

    @property
    def outside(self) -> int:
        """How many of the consumed indices are not samples: no word of the digest holds them."""
        return (self.consumed - self.consumed_digest.words[0]) % P

    def values(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        lists: dict[str, Any] = {"lost_indices": [*self.lost_indices], "duplicated_indices": [*self.duplicated_indices]}
        lists["sizes"] = stated_runs(self.sizes)
        for name in ("dropped_digest", "drawn_digest"):
            packed: bytes | None = getattr(self, name)
            lists[name] = packed and digest.as_text(packed)
        return {name: getattr(self, name) for name in NAMES} | {"digest": digest.as_text(self.digest), **lists}

    def printed(self) -> dict[str, Any]:
        """The fields that the line has: not indices where nothing is wrong, and no optional field that is None."""
        values = self.values()
        left_out = {name for name in _MAY_BE_NONE if values[name] is None}
        if not self.lost and not self.duplicated:
            left_out |= {"lost_indices", "duplicated_indices"}
        return {"v": VERSION} | {name: value for name, value in values.items() if name not in left_out}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The line with these values. Raises ValueError that names the field, its value and what is allowed."""
        shared, own = checked(values)
        return cls(**shared, **own)


NAMES = tuple(field.name for field in fields(TallyLine))
_MAY_BE_NONE = [field.name for field in fields(TallyLine) if field.default is None]
_OF_A_RANK = rules.marked(TallyLine, OF_A_RANK)
_SHARED = [name for name in NAMES if name not in _OF_A_RANK]
_DEFAULTS = {field.name: field.default for field in fields(TallyLine) if field.default is not MISSING}
_known: dict[str, dict[str, Any]] = {}  # the last values that lines of several ranks shared, by their text
_MOST_KNOWN = 1 << 10


def checked(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the line with these values: those that all ranks have in common, held once, and the rank's own.

    Raises ValueError that names the field, its value and what is allowed.
    """
    line = Values(values)
    shared, own = _shared(line), rules.checked(TallyLine, line, _OF_A_RANK)
    if own["consumed"] < (counted := _count_of(own["digest"])):
        raise line.bad("consumed", f"no less than the {counted} samples that its digest counts")
    if (own.get("dropped") or 0) != (counted := _count_of(own.get("dropped_digest", b""))):
        raise line.bad("dropped", f"the {counted} samples that dropped_digest counts")
    if shared["order"] == DRAWN:
        needed = own["rank"] != "all" or shared["contract"] == "as_drawn" or shared["end"] is not None
        if needed != ("drawn_digest" in own):
            raise line.bad("drawn_digest", "a digest" if needed else "nothing, as the contract tells what is expected")
    return shared, own


def _count_of(packed: bytes) -> int:
    """The number of samples in a packed digest."""
    return int.from_bytes(packed[:8], "big")


def _shared(line: Values) -> dict[str, Any]:
    """The fields that all ranks have in common in an epoch: checked once, and held once."""
    asked = repr([line.values.get(name, ...) for name in _SHARED])  # as values, True would equal 1
    if not (shared := _known.get(asked)):
        shared = {name: _DEFAULTS[name] for name in _SHARED if name in _DEFAULTS}
        shared |= rules.checked(TallyLine, line, _SHARED)
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known[asked] = shared
    return shared


def problem(values: Mapping[str, Any]) -> str | None:
    """Why no line can have these values of fields, in a sentence that names the first such field."""
    try:
        rules.checked(TallyLine, Values(values), values)
    except ValueError as error:
        return str(error)
    return None


def text_problem(name: str, value: object) -> str | None:
    """Why no line can have this text."""
    try:
        rules.text(Values({name: value}), name)
    except ValueError as error:
        return str(error)
    return None


def check_version(values: Mapping[str, Any]) -> None:
    """Raise ValueError unless this release reads the version of a line."""
    version = values.get("v")
    if version == VERSION and type(version) is int:
        return
    known = f"only version {VERSION} is read"
    if "v" not in values:
        raise ValueError('"v" (its version) is missing')
    if type(version) is int and version == 1:
        raise ValueError(f"version 1 of the line is from an earlier torchtally, which can verify it; here, {known}")
    raise ValueError(f"version {rules.show(version)} of the line is not known here, {known}")


def to_text(values: Mapping[str, Any]) -> str:
    """The line as it is printed."""
    return PREFIX + json.dumps(values, separators=(",", ":"))
