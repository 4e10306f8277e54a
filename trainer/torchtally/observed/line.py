"""One line of torchtally_observer: docs/reference/observation.md has the fields."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

VERSION = 1
_ENDS = ("whole", "left", "open")
_MOST = 1 << 62
Made = TypeVar("Made", "Process", "Loader", "Base", "Handed")


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
    attributes: str = ""
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
    fresh: int | None = None  # of a stream, rows until the last of the smallest checksums had come
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
    groups = _groups(values.get("groups", []))
    process = _made(Process, values, grouped=values.get("grouped") is True, groups=groups)
    if process.rank >= process.world:
        raise ValueError(f"an observed line has rank {process.rank} of {process.world}")
    if "off" in values:
        return Rest(process=process, text=_text(values, "off"), off=True)
    if "unseen" in values:
        return Rest(process=process, text=_text(values, "unseen"), unseen=True)
    loader = _made(Loader, _object(values, "loader"))
    if "passes" in values:
        text = f"{loader.name}: {_count(values, 'passes')} more passes with {_count(values, 'samples')} samples"
        return Rest(process=process, text=text)
    return _handed(values, process, loader)


def _handed(values: Mapping[str, Any], process: Process, loader: Loader) -> Handed:
    end = _text(values, "end")
    if end not in _ENDS:
        raise ValueError(f"an observed line has the end {end!r}, must be one of {', '.join(_ENDS)}")
    base = _made(Base, _object(values, "base")) if "base" in values else None
    count = _count(values, "samples")
    indexed = base is not None and "bits" in values
    return _made(
        Handed,
        values,
        process=process,
        at=float(values.get("at", 0)),
        loader=loader,
        sampler=_object(values, "sampler"),
        number=_count(values, "pass"),
        gradients=bool(values.get("gradients")),
        base=base,
        handed=_samples(values, count) if indexed else None,
        order=_name(values, "order"),
        head=str(values.get("head")) if indexed else None,
        twice=_bits(values["twice"]) if "twice" in values else 0,
        holds=_held(_object(values, "holds")) if "holds" in values else None,
        contents={str(name): str(each) for name, each in _object(values, "contents", {}).items()},
        keyed=values.get("keys") is True,
        smallest=_smallest(values.get("smallest", "")),
    )


def _made(kind: type[Made], values: Mapping[str, Any], **own: Any) -> Made:
    """An object with its `own` fields; `values` have the others by their names, checked by their types."""
    for each in fields(kind):
        if each.name not in own and (each.name in values or each.default is MISSING):
            own[each.name] = _READ[each.type](values, each.name)
    return kind(**own)


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


def _name(values: Mapping[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else _text(values, name)


def _count(values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _MOST:
        raise ValueError(f"an observed line has {name} {found!r}; it must be a whole number from 0")
    return found


def _optional(values: Mapping[str, Any], name: str) -> int | None:
    return None if values.get(name) is None else _count(values, name)


_READ: Mapping[Any, Callable[[Mapping[str, Any], str], Any]] = {
    str: _text,
    str | None: _name,
    int: _count,
    int | None: _optional,
}
