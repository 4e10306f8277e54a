"""The steps of a rank in one phase of one epoch: for the tensors of a built-in task, and for a user's loader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, count, pairwise, repeat
from typing import NamedTuple

import numpy as np

from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Shard

_CHUNK = 1 << 15  # indices computed at a time: many steps' worth, little memory


class Step(NamedTuple):
    """A step that is planned.

    Attributes:
        indices: This rank's samples, int64 (samples,).
        rows: Samples of all ranks.
        position: Where it begins in the order.
    """

    indices: Indices
    rows: int
    position: int


@dataclass(frozen=True)
class Schedule:
    """Step s covers the positions [start + s · batch, start + (s + 1) · batch) of the order, at any number of ranks.

    All ranks have equally many steps. The last one has fewer samples, on some ranks none unless it is `shared`.

    Attributes:
        shard: What the rank consumes.
        batch: Samples of all ranks together in a step.
        skip: Number of steps, from the first on, that are made already.
        drop_last: Whether a last step that has fewer samples is left out.
        shared: Whether the last step takes samples of the one before it if a rank has none and that has two for each.
    """

    shard: Shard
    batch: int
    skip: int = 0
    drop_last: bool = False
    shared: bool = False

    @cached_property
    def steps(self) -> int:
        """Number of steps, those that are skipped included."""
        return self.shard.total // self.batch if self.drop_last else self.shard.steps(self.batch)

    @cached_property
    def total(self) -> int:
        """Samples of all ranks in all steps, repeats counted."""
        return min(self.steps * self.batch, self.shard.total)

    @property
    def rest(self) -> Indices:
        """This rank's sample indices of a step that is left out, int64 (samples,)."""
        return self.shard.indices(min(self.begin(self.steps), self.shard.size), self.shard.size)

    def reached(self, steps: int) -> int:
        """Samples of all ranks in the first steps, repeats counted."""
        return min(self._edge(steps), self.total)

    def position(self, step: int) -> int:
        """The position of the order at which a step begins, from 1, as if the order had no end."""
        return self.shard.start + (step - 1) * self.batch

    def begin(self, step: int) -> int:
        """The number, in this rank's shard, of its first sample at or after a step's first position."""
        return -(-(self._edge(step) - self.shard.rank) // self.shard.world)

    def _edge(self, step: int) -> int:
        """How many positions after the first one a step begins."""
        edge, world = step * self.batch, self.shard.world
        if self.shared and step == self.steps - 1 > 0 and self.batch >= 2 * world:
            return min(edge, self.total - world)
        return edge

    @property
    def filler(self) -> int:
        """The index of a sample for a rank that has none in a step."""
        return int(self.shard.samples_at(np.array([self.shard.start]))[0])

    def left(self) -> Iterator[Step]:
        """The steps that are left. All but the last two of an epoch are whole."""
        first = max(self.skip, self.steps - 2)
        last = (self.reached(step + 1) - self.reached(step) for step in range(first, self.steps))
        rows = chain(repeat(self.batch, first - self.skip), last)
        return map(Step, self.arrays(), rows, count(self.position(self.skip + 1), self.batch))

    def arrays(self) -> Iterator[Indices]:
        """This rank's sample indices of each step that is left, int64 (samples,)."""
        return chain.from_iterable(self._chunks())

    def _chunks(self) -> Iterator[list[Indices]]:
        own, uneven = divmod(self.batch, self.shard.world)
        steps, at_once = self.steps, max(1, _CHUNK * self.shard.world // self.batch)
        for first in range(self.skip, steps, at_once):
            last = min(first + at_once, steps)
            numbers = range(first, last + 1)
            equal = not uneven and not self.shared
            bounds: Sequence[int] = range(first * own, last * own + 1, own) if equal else [*map(self.begin, numbers)]
            some = _indices(self.shard, bounds[0], bounds[-1])
            yield [some[low - bounds[0] : high - bounds[0]] for low, high in pairwise(bounds)]


@lru_cache(maxsize=8)  # of some phases: a loader asks for them, and the epoch in progress compares what it has
def _indices(shard: Shard, begin: int, end: int) -> Indices:
    return shard.indices(begin, end)
