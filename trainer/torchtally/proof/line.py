"""The format of a tally line: its prefix, its version, and its fields with their types and bounds.

This is the only place that lists them: the trainer fills in a TallyLine, and the verifier parses one. An added field
needs a default, with which lines that lack it are read; None is not printed. The version then stays the same. A field
with another meaning needs another version.
"""

import json
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, Struct

from torchtally.proof import digest, interleaving, rules
from torchtally.proof import order as orders
from torchtally.proof.contract import Contract
from torchtally.proof.drop_counts import Accounted
from torchtally.proof.interleaving import Counts
from torchtally.proof.modular import P
from torchtally.proof.order import DRAWN
from torchtally.proof.rules import HUGE, MANY, Count, Maybe, Text, Wrong, integer
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.shards import Shard

PREFIX = "TORCHTALLY "
VERSION = 2
NAMED = 8  # lost and duplicated samples that a line names at most: enough to look one up, and it stays under 1 KB

Attempt = tuple[int, int]  # number and begin: one that kept no checkpoint has its number used again by the next
Rank = int | Literal["all"]
Shared = tuple[Any, ...]
OF_A_RANK = "differs from rank to rank"
_MIXTURE = "an object that gives each source [weight, samples, rows], in the order sequential"
_COUNTED = Meta(description=f"an integer from 0 to {HUGE}")
_INDICES = Meta(max_length=NAMED, description=f"a list of at most {NAMED} integers")


class TallyLine(Accounted, Struct, frozen=True, kw_only=True, gc=False):
    """What one rank, or all of them together, consumed in one phase of one epoch."""

    run: Text  # the run's id
    attempt: Count  # restarts of the run so far
    began: rules.Began = 0  # when rank 0 began the attempt; tells attempts of the same number apart
    pod: Annotated[Text, OF_A_RANK]
    task: Text
    phase: str
    epoch: Annotated[int, integer(1, MANY)]
    plan: rules.Plan  # phase -> epochs of it that the run will make
    rank: Annotated[Annotated[int, Meta(ge=0)] | Literal["all"], OF_A_RANK]  # "all" ranks together, or one of them
    world: Annotated[int, integer(1, MANY)]
    n: rules.Samples  # of the dataset
    start: Count  # the position of the order from which these ranks share the samples
    batch: Annotated[int, integer(1, HUGE)]  # samples a step, of all ranks together
    end: Maybe[Annotated[int, integer(1, HUGE)]] = None  # the position before which the epoch ends, if not its order's
    seed: rules.Seed
    contract: Contract
    order: rules.Order
    sizes: Annotated[Maybe[ShardSizes], OF_A_RANK] = None  # of "all" alone, if there is room
    data: Text  # the data's fingerprint
    expected: Annotated[Count, OF_A_RANK]  # samples; of "all", with those before `start`, as are ...
    consumed: Annotated[Count, OF_A_RANK]  # ... these, repeats counted
    digest: Annotated[rules.Digest, OF_A_RANK]
    # What the program has dropped of `expected`, if anything: how many samples, and their digest. Of "all", with those
    # before `start`. They are not in `consumed` and `digest`.
    dropped: Maybe[Annotated[int, integer(1, HUGE), OF_A_RANK]] = None
    dropped_digest: Maybe[Annotated[rules.Digest, OF_A_RANK]] = None
    # In the order `drawn`: the digest of what the samplers have drawn, which is what is expected. Of "all", only where
    # nothing else tells: under `as_drawn`, and of an epoch that ends early.
    drawn_digest: Maybe[Annotated[rules.Digest, OF_A_RANK]] = None
    # Of a mixture: weight, samples, and rows of each source; of "all" alone.
    mixture: Maybe[Annotated[Mapping[str, Counts], Meta(min_length=1, description=_MIXTURE), OF_A_RANK]] = None
    lost: Annotated[Count | None, _COUNTED, OF_A_RANK]  # samples; both are null if too many to count
    duplicated: Annotated[Count | None, _COUNTED, OF_A_RANK]
    # Some of them, and only where `lost` or `duplicated` is not 0. A duplicated index may lie outside of the dataset.
    lost_indices: Annotated[tuple[int, ...], _INDICES, OF_A_RANK] = ()
    duplicated_indices: Annotated[tuple[int, ...], _INDICES, OF_A_RANK] = ()

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
        return rules.printed(self)

    def printed(self) -> dict[str, Any]:
        """The fields that the line has: not indices where nothing is wrong, and no optional field that is None."""
        values = self.values()
        left_out = {name for name in _MAY_BE_NONE if values[name] is None}
        if not self.lost and not self.duplicated:
            left_out |= {"lost_indices", "duplicated_indices"}
        return {"v": VERSION} | {name: value for name, value in values.items() if name not in left_out}

    @property
    def shared(self) -> Shared:
        """The values of the fields that all ranks have in common; phases have an order."""
        return *_SHARED_VALUES(self), *self.plan.items()

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The line with these values. Raises ValueError that names the field, its value and what is allowed."""
        return rules.made(cls, values, _wrong)


_FIELDS = rules.fields(TallyLine)
NAMES = tuple(field.name for field in _FIELDS)
_MAY_BE_NONE = [field.name for field in msgspec.structs.fields(TallyLine) if field.default is None]
_OWN, _SHARED = ([field for field in _FIELDS if (OF_A_RANK in field.marks) is own] for own in (True, False))
OWN = tuple(field.name for field in _OWN)
_OWN_BOUNDED = [field for field in _OWN if field.fits]
_SHARED_VALUES = attrgetter(*(field.name for field in _SHARED if field.name != "plan"))
_DECODER = msgspec.json.Decoder(TallyLine, dec_hook=rules.decoded)
_BEGIN = f'{{"v":{VERSION},'  # of a line, as it is printed
_right: set[Shared] = set()  # what lines of several ranks shared: it is checked once
_MOST_RIGHT = 1 << 10


def read(text: str) -> TallyLine | None:
    """The line that a text is, in a third of the time of `parse`; None if there is more, or anything is wrong."""
    if not text.startswith(_BEGIN):
        return None
    try:
        line = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return None if next(_wrong(line), None) else line


def _wrong(line: TallyLine) -> Iterator[Wrong]:
    """The fields with a value that is not allowed, alone or beside the others."""
    if (shared := line.shared) not in _right:
        faults = [*rules.misfits(line, _SHARED), *(((name,), allowed) for name, allowed in _wrong_in_all(line))]
        yield from faults
        if len(_right) == _MOST_RIGHT:
            _right.clear()
        if not faults:
            _right.add(shared)
    yield from rules.misfits(line, _OWN_BOUNDED)
    yield from (((name,), allowed) for name, allowed in _wrong_in_one(line))


def _wrong_in_all(line: TallyLine) -> Iterator[tuple[str, str]]:
    if line.phase not in line.plan:
        yield "phase", " or ".join(line.plan)
    elif not line.epoch <= line.plan[line.phase]:
        yield "epoch", f"an integer from 1 to {line.plan[line.phase]}"
    drawn = line.order == DRAWN
    most = 0 if drawn else line.n
    if not line.start <= most:
        yield "start", f"an integer from 0 to {most}"
    most = HUGE if drawn else line.n - 1
    if line.end is not None and not (least := min(max(1, line.start), most)) <= line.end <= most:
        yield "end", f"an integer from {least} to {most}"
    yield from (("contract", allowed) for allowed in rules.contract(line))


def _wrong_in_one(line: TallyLine) -> Iterator[tuple[str, str]]:
    if line.rank != "all" and not line.rank < line.world:
        yield "rank", f'an integer from 0 to {line.world - 1} (world is {line.world}), or "all"'
    if line.sizes:
        yield from (("sizes", allowed) for allowed in rules.sizes(line))
    if line.consumed < (counted := _count_of(line.digest)):
        yield "consumed", f"no less than the {counted} samples that its digest counts"
    if (line.dropped or 0) != (counted := _count_of(line.dropped_digest)):
        yield "dropped", f"the {counted} samples that dropped_digest counts"
    needed = line.order == DRAWN and (line.rank != "all" or line.contract == "as_drawn" or line.end is not None)
    if needed != (line.drawn_digest is not None):
        yield "drawn_digest", "a digest" if needed else "nothing, as the contract tells what is expected"
    if line.mixture is not None and (line.order != "sequential" or not interleaving.are_counts(line.mixture)):
        yield "mixture", _MIXTURE
    if (line.lost is None) != (line.duplicated is None):
        name, other = ("lost", "duplicated") if line.lost is None else ("duplicated", "lost")
        yield name, f'an integer from 0 to {HUGE}, or null where "{other}" is null too'
    for name, low, high in (("lost", 0, line.n - 1), ("duplicated", -HUGE - 1, HUGE)):
        if (named := getattr(line, f"{name}_indices")) != ():
            most = min(getattr(line, name) or 0, NAMED)
            if not isinstance(named, tuple) or len(named) > most or not all(low <= each <= high for each in named):
                yield f"{name}_indices", f"a list of at most {most} integers from {low} to {high}"


def _count_of(text: str | None) -> int:
    """The number of samples in a digest."""
    return int.from_bytes(digest.pack(text)[:8], "big") if text else 0


def problem(values: Mapping[str, Any]) -> str | None:
    """Why no line can have these values of fields, in a sentence that names the first such field."""
    return rules.problem(TallyLine, values)


def text_problem(name: str, value: object) -> str | None:
    """Why no line can have this text."""
    if isinstance(value, str) and rules.is_text(value):
        return None
    return rules.sentence({name: value}, (name,), "printable text")


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
