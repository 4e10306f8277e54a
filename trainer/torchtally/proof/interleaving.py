"""The plan interleave-1: rows that take turns among several sources, by weights that are whole numbers.

After any number of rows, each source has had less than one row more or less than its share. The turns repeat after as
many rows as the weights add up to, so that many are stored. Item j of a source with the weight a of W may come from row
⌊j W / a⌋ on, and must come before row ⌈(j + 1) W / a⌉. Of those that may, the one that must come first does, and of
several, that of the first source. Its windows always fit: Baruah and others, "Proportionate progress" (Algorithmica
1996).
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta

from torchtally.proof.permutation import Indices
from torchtally.proof.rules import HUGE, is_text
from torchtally.proof.shards import Shard

NAME = "interleave-1"
MOST = 1_000_000  # that the weights add up to


@dataclass(frozen=True)
class Interleaving:
    """The turns of sources with these weights, each at least 1."""

    weights: tuple[int, ...]

    @classmethod
    def of(cls, weights: Sequence[float | Fraction]) -> "Interleaving":
        """The turns by weights in the ratio of whole numbers. Raises ValueError that says what weights must be."""
        allowed = f"numbers above 0 in the ratio of whole numbers that add up to at most {MOST}"
        try:
            exact = [Fraction(str(weight)) for weight in weights]  # 0.7 is 7/10, and not the nearest binary number
        except (ValueError, ZeroDivisionError):
            raise ValueError(allowed) from None
        if not exact or min(exact) <= 0:
            raise ValueError(allowed)
        scale = math.lcm(*(each.denominator for each in exact))
        whole = [int(each * scale) for each in exact]
        divisor = math.gcd(*whole)
        found = cls(tuple(each // divisor for each in whole))
        if sum(found.weights) > MOST:
            raise ValueError(f"{allowed}, and these are as {' : '.join(map(str, found.weights[:8]))}")
        return found

    def at(self, rows: Indices) -> tuple[Indices, Indices]:
        """The source of each row, and which of that source's rows it is, from 0."""
        table = _table(self.weights)
        turns, slots = np.divmod(rows, len(table.sources))
        sources = table.sources[slots]
        return sources, turns * np.array(self.weights, dtype=np.int64)[sources] + table.numbers[slots]

    def rows_of(self, source: int, numbers: Indices) -> Indices:
        """The rows at which a source has these of its rows: the inverse of `at`."""
        table = _table(self.weights)
        turns, within = np.divmod(numbers, self.weights[source])
        rows: Indices = turns * len(table.sources) + table.slots[source][within]
        return rows

    def counts(self, rows: int) -> list[int]:
        """How many of the first `rows` rows are each source's."""
        table = _table(self.weights)
        turns, rest = divmod(rows, len(table.sources))
        more = np.bincount(table.sources[:rest], minlength=len(self.weights)).tolist()
        return [turns * weight + each for weight, each in zip(self.weights, more, strict=True)]


@dataclass(frozen=True)
class _Table:
    """One round of turns: the source of each slot, which of its own it is, and the slots of each source."""

    sources: Indices
    numbers: Indices
    slots: list[Indices]


@lru_cache(maxsize=16)
def _table(weights: tuple[int, ...]) -> _Table:
    whole = sum(weights)
    sources, numbers = np.empty(whole, dtype=np.int64), np.empty(whole, dtype=np.int64)
    coming = [(0, source) for source in range(len(weights))]  # by the row from which it may have its next turn
    ready: list[tuple[int, int]] = []  # by the row before which it must
    had = [0] * len(weights)
    for row in range(whole):
        while coming and coming[0][0] <= row:
            source = heapq.heappop(coming)[1]
            heapq.heappush(ready, (-(-(had[source] + 1) * whole // weights[source]), source))
        source = heapq.heappop(ready)[1]
        sources[row], numbers[row] = source, had[source]
        had[source] += 1
        if had[source] < weights[source]:
            heapq.heappush(coming, (had[source] * whole // weights[source], source))
    return _Table(sources, numbers, [np.flatnonzero(sources == source) for source in range(len(weights))])


# Of a source: its weight, its samples, and its rows in an epoch.
Counts = tuple[
    Annotated[int, Meta(ge=1, le=MOST)], Annotated[int, Meta(ge=1, le=HUGE)], Annotated[int, Meta(ge=0, le=HUGE)]
]


def are_counts(mixture: Mapping[str, Counts]) -> bool:
    """Whether a mixture's sources have names that can be shown, and weights that turns can be made of."""
    return all(map(is_text, mixture)) and sum(weight for weight, _, _ in mixture.values()) <= MOST


@dataclass(frozen=True)
class Mix:
    """The sources of a mixture: the samples of each, by its name."""

    sizes: Mapping[str, int]
    turns: Interleaving

    def counts(self, shard: Shard) -> dict[str, Counts]:
        """What all ranks together consume of each source in the epoch of `shard`, whose order is sequential."""
        rows = [sum(each) for each in zip(*(self.turns.counts(lap) for lap in _laps(shard)), strict=True)]
        return {
            name: (weight, size, own)
            for (name, size), weight, own in zip(self.sizes.items(), self.turns.weights, rows, strict=True)
        }


def stated(counts: Mapping[str, Counts]) -> Mix:
    """The mixture that a line states."""
    sizes = {name: size for name, (_, size, _) in counts.items()}
    return Mix(sizes, Interleaving(tuple(weight for weight, _, _ in counts.values())))


def described(counts: Mapping[str, Counts], shard: Shard) -> list[str]:
    """A sentence on each source: its rows, and how often each of its samples is used. The numbers are checked."""
    laps = [stated(counts).turns.counts(lap) for lap in _laps(shard)]
    sentences = []
    for number, (name, (weight, size, rows)) in enumerate(counts.items()):
        least, most = sum(lap[number] // size for lap in laps), sum(-(-lap[number] // size) for lap in laps)
        times = str(least) if least == most else f"{least} or {most}" if least + 1 == most else f"{least} to {most}"
        whole = sum(each for each, _, _ in counts.values())
        used = f"each of its {size} samples {times} time{'s' * (times != '1')}"
        sentences.append(f"{name}: {rows} rows by its weight {weight}/{whole}, {used}")
    return sentences


def _laps(shard: Shard) -> list[int]:
    """How many rows are consumed from the first one on; where samples are repeated, there are several such laps."""
    return [lap.count for lap, times in shard.everything.items() for _ in range(times)] or [0]
