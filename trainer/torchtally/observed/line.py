"""One line of torchtally_observer: docs/reference/observation.md has the fields."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
_ENDS = ("whole", "left", "open")
_MOST = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    place: str | None
    type: str
    dataset: str
    length: int | None
    batch: int | None
    workers: int

    @property
    def name(self) -> str:
        """How people find it."""
        return f"{self.place or 'a loader'} ({self.dataset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The dataset below all Subsets."""

    type: str
    length: int | None
    attributes: str
    rows: int = 0  # of its data, whose checksums are in that of its attributes


Sums = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A multiset of samples of a base: their number, the sums of the powers 1 to 3 of their indices, and a sketch."""

    count: int
    sums: Sums
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of a program."""

    pod: str
    rank: int
    world: int
    local: int | None
    grouped: bool = True  # it has had a process group of torch.distributed
    groups: tuple[tuple[int, ...], ...]
    began: int  # milliseconds since 1970
    pid: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.pod, self.pid, self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What one pass of a loader has handed out to one rank."""

    process: Process
    at: float  # seconds since 1970
    loader: Loader
    sampler: Mapping[str, Any]
    number: int  # of the pass, among those of this loader
    end: str
    batches: int
    of: int | None  # batches of a whole pass
    samples: int
    steps: int | None  # of optimizers, after its batches
    gradients: bool
    resumed: int = 0  # batches that were handed out before, by an iterator whose state was loaded
    beside: int = 0  # steps after batches of this and another loader, in turn
    base: Base | None = None  # of a stream, there is none
    handed: Samples | None = None  # None: its indices are no numbers, or it is a stream
    order: str | None = None
    head: str | None = None
    twice: int = 0
    holds: Samples | None = None  # what this rank's Subset holds of the base; None: all of it
    contents: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None  # of a stream, whose checksums are known
    keyed: bool = False
    smallest: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def phase(self) -> str:
        """By this line alone: other ranks, and other passes, may tell more."""
        return "train" if (self.gradients if self.steps is None else self.steps) else "evaluate"

    @property
    def whole(self) -> bool:
        return self.end == "whole" and not self.resumed

    @property
    def trains(self) -> bool:
        """Whether optimizers stepped on its batches."""
        return bool(self.steps) or self.beside > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A line that is not of one pass: passes that are summed up, or why nothing is observed."""

    process: Process
    text: str
    off: bool = False
    unseen: bool = False  # the process trained, and used no DataLoader


def parse(values: Any) -> Handed | Rest:
    """The line with these values. Raises ValueError with a sentence."""
    if not isinstance(values, dict):
        raise ValueError("an observed line must be a JSON object")
    version = values.get("v")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        hint = ": use the verifier of the release that wrote it" if newer else ""
        raise ValueError(f"an observed line has version {version!r}, and this release reads version {VERSION}{hint}")
    process = Process(
        pod=_text(values, "pod"),
        rank=_count(values, "rank"),
        world=_count(values, "world"),
        local=_optional(values, "local"),
        grouped=values.get("grouped") is True,
        groups=_groups(values.get("groups", [])),
        began=_count(values, "began"),
        pid=_count(values, "pid"),
    )
    if process.rank >= process.world:
        raise ValueError(f"an observed line has rank {process.rank} of {process.world}")
    if "off" in values:
        return Rest(process=process, text=_text(values, "off"), off=True)
    if "unseen" in values:
        return Rest(process=process, text=_text(values, "unseen"), unseen=True)
    loader = _loader(_object(values, "loader"))
    if "passes" in values:
        text = f"{loader.name}: {_count(values, 'passes')} more passes with {_count(values, 'samples')} samples"
        return Rest(process=process, text=text)
    return _handed(values, process, loader)


def _handed(values: Mapping[str, Any], process: Process, loader: Loader) -> Handed:
    end = _text(values, "end")
    if end not in _ENDS:
        raise ValueError(f"an observed line has the end {end!r}, must be one of {', '.join(_ENDS)}")
    base = _base(_object(values, "base")) if "base" in values else None
    count = _count(values, "samples")
    indexed = base is not None and "bits" in values
    return Handed(
        process=process,
        at=float(values.get("at", 0)),
        loader=loader,
        sampler=_object(values, "sampler"),
        number=_count(values, "pass"),
        end=end,
        batches=_count(values, "batches"),
        of=_optional(values, "of"),
        samples=count,
        steps=_optional(values, "steps"),
        gradients=bool(values.get("gradients")),
        resumed=_optional(values, "resumed") or 0,
        beside=_optional(values, "beside") or 0,
        base=base,
        handed=_samples(values, count) if indexed else None,
        order=_text(values, "order") if indexed else None,
        head=str(values.get("head")) if indexed else None,
        twice=_bits(values["twice"]) if "twice" in values else 0,
        holds=_held(_object(values, "holds")) if "holds" in values else None,
        contents={str(name): str(each) for name, each in _object(values, "contents", {}).items()},
        rows=_optional(values, "rows"),
        keyed=values.get("keys") is True,
        smallest=_smallest(values.get("smallest", "")),
    )


def _loader(values: Mapping[str, Any]) -> Loader:
    return Loader(
        place=None if values.get("place") is None else _text(values, "place"),
        type=_text(values, "type"),
        dataset=_text(values, "dataset"),
        length=_optional(values, "length"),
        batch=_optional(values, "batch"),
        workers=_count(values, "workers"),
    )


def _base(values: Mapping[str, Any]) -> Base:
    return Base(
        type=_text(values, "type"),
        length=_optional(values, "length"),
        attributes=str(values.get("attributes", "")),
        rows=_optional(values, "rows") or 0,
    )


def _held(values: Mapping[str, Any]) -> Samples:
    return _samples(values, _count(values, "samples"))


def _samples(values: Mapping[str, Any], count: int) -> Samples:
    sums = values.get("sums")
    if not (isinstance(sums, list) and len(sums) == 3 and all(str(each).isdecimal() for each in sums)):
        raise ValueError("an observed line needs three whole numbers in sums")
    return Samples(count=count, sums=(int(sums[0]), int(sums[1]), int(sums[2])), bits=_bits(values.get("bits")))


def _bits(text: Any) -> int:
    return int.from_bytes(_decoded(text), "big")


def _smallest(text: Any) -> tuple[int, ...]:
    raw = _decoded(text)
    return tuple(int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4))


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(str(text) + "=" * (-len(str(text)) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"an observed line has bits that are no base64: {error}") from None


def _groups(values: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(values, list) or not all(isinstance(each, list) for each in values):
        raise ValueError("an observed line has groups that are no lists")
    return tuple(tuple(int(rank) for rank in each) for each in values)


def _object(values: Mapping[str, Any], name: str, default: Any = None) -> dict[str, Any]:
    found = values.get(name, default)
    if not isinstance(found, dict):
        raise ValueError(f"an observed line has no object {name}")
    return found


def _text(values: Mapping[str, Any], name: str) -> str:
    found = values.get(name)
    if not isinstance(found, str):
        raise ValueError(f"an observed line has {name} {found!r}, must be a text")
    return found


def _count(values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _MOST:
        raise ValueError(f"an observed line has {name} {found!r}, must be a whole number from 0")
    return found


def _optional(values: Mapping[str, Any], name: str) -> int | None:
    return None if values.get(name) is None else _count(values, name)
