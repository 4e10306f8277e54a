"""Where the batches of a collate_fn show how many samples they have.

A collate_fn makes batches of two and of four copies of one sample. What grows by a whole number with each copy counts
samples: the rows of a tensor, any other axis of it, the length of a list. It counts what is in the samples instead,
such as the nodes of a graph, if it is of another size with another sample. A size that counts samples and has another
value in a batch shows that the collate_fn has left samples out, or has them twice.
"""

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from torchtally.accounting import randomness

_ASKED = 4  # samples that are copied
_FEW, _MORE = 2, 4  # copies: some collate_fns take no odd number
Place = tuple[Any, ...]  # the keys that lead to a part, and at last its axis
Copies = Callable[[int, int], Any]  # of a step's sample, by its number: so many of them, for a collate_fn


class _Line(NamedTuple):
    """The size that a batch of so many samples has."""

    first: int
    each: int

    def at(self, samples: int) -> int:
        return self.first + self.each * samples


class Sizes:
    """Sizes in the batches of a collate_fn that count their samples."""

    def __init__(self, collate: Callable[[Any], Any]):
        self._collate = collate
        self._lines: dict[Place, _Line | None] = {}  # by place; None where what counts is in the samples
        self._asked = 0  # samples

    @property
    def known(self) -> dict[Place, _Line]:
        """Those that were found."""
        return {place: line for place, line in self._lines.items() if line}

    def learn(self, samples: int, copies: Copies) -> None:
        """Find them with the first samples of the epoch: a collate_fn can drop one of them."""
        if self._asked >= _ASKED:
            return
        with randomness.kept():
            for number in range(min(samples, _ASKED - self._asked)):
                self._asked += 1
                few = self._of(number, _FEW, copies)
                more = self._of(number, _MORE, copies) if few else {}
                for place, size in few.items():
                    each, rest = divmod(more.get(place, size) - size, _MORE - _FEW)
                    if each >= 1 and not rest:
                        line = _Line(size - _FEW * each, each)
                        self._lines[place] = line if self._lines.get(place, line) == line else None

    def wrong(self, made: Any, samples: int, copies: Copies) -> Collection[int]:
        """The sizes in `made` that show another number of samples. What does not count samples is forgotten first."""
        found = {place: _extent(made, place) for place in self.known}
        wrong = {place: size for place, size in found.items() if size != self.known[place].at(samples)}
        for place in [place for place, size in wrong.items() if size is None]:
            self._lines[place] = None
            del wrong[place]
        if wrong:
            with randomness.kept():
                for number in range(samples):
                    few = self._of(number, _FEW, copies) if wrong else {}
                    for place in [*wrong]:
                        size, line = few.get(place, 0), self.known[place]
                        if size > line.first and size != line.at(_FEW):
                            self._lines[place] = None
                            del wrong[place]
        return {size for size in wrong.values() if size is not None}

    def count_none(self, made: Any) -> bool:
        """Whether `made` shows that it has no sample."""
        return bool(self.known) and all(_extent(made, place) == line.first for place, line in self.known.items())

    def _of(self, number: int, times: int, copies: Copies) -> dict[Place, int]:
        """All sizes in a batch of copies, none if the collate_fn takes no such batch."""
        randomness.reseed(number)  # so that what is drawn is equal in two batches
        try:
            return dict(_extents(self._collate(copies(number, times)), (), set()))
        except Exception:
            return {}


def copied(sample: Any, times: int) -> list[Any]:
    """Copies of a sample, as a collate_fn may change each."""
    try:
        return [copy.deepcopy(sample) for _ in range(times)]
    except Exception:
        return [sample] * times


def fields(whole: Any) -> list[str]:
    """The names of a dataclass's fields."""
    if not dataclasses.is_dataclass(whole) or isinstance(whole, type):
        return []
    return [field.name for field in dataclasses.fields(whole)]


def parts(whole: Any) -> Mapping[Any, Any]:
    """Return what a mapping, a list, a tuple or a dataclass consists of; nothing of anything else."""
    if isinstance(whole, Mapping):
        return whole
    if isinstance(whole, list | tuple):
        return dict(enumerate(whole))
    return {name: getattr(whole, name) for name in fields(whole)}


def _all_parts(whole: Any) -> Mapping[Any, Any]:
    """Those of any other object as well: its attributes."""
    return parts(whole) or ({} if isinstance(whole, type) else getattr(whole, "__dict__", {}))


def _shape(part: Any) -> tuple[int, ...]:
    if isinstance(part, Tensor):
        return (part.size(0),) if part.is_nested else tuple(part.shape)
    if isinstance(part, np.ndarray):
        return tuple(part.shape)
    return (len(part),) if isinstance(part, list | tuple) else ()


def _extents(whole: Any, at: Place, seen: set[int]) -> Iterator[tuple[Place, int]]:
    """The sizes of all parts. An object that is in several places is in the first."""
    yield from (((*at, axis), size) for axis, size in enumerate(_shape(whole)))
    if isinstance(whole, Tensor | np.ndarray) or id(whole) in seen:
        return
    seen.add(id(whole))
    for key, part in _all_parts(whole).items():
        yield from _extents(part, (*at, key), seen)


def _extent(whole: Any, place: Place) -> int | None:
    """The size at a place, None if there is none."""
    *keys, axis = place
    for key in keys:
        known = _all_parts(whole)
        if key not in known:
            return None
        whole = known[key]
    shape = _shape(whole)
    return shape[axis] if axis < len(shape) else None
