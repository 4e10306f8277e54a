"""Which sample goes where: pure functions of (n, seed, epoch, rank, world, contract), without torch and without state.

A shard is the arithmetic progression of positions r, r + world, r + 2 world, ... of the epoch's order that rank r
consumes. Where a phase resumes at position `start`, the ranks share the positions from there on in the same way.
What a rank has of the order `drawn` follows from no function: of that, a shard knows the positions alone.
"""

from dataclasses import dataclass

import numpy as np

from torchtally.proof import permutation
from torchtally.proof.contract import Contract, OfPositions
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.order import DRAWN, Order
from torchtally.proof.permutation import Indices

_BY_INDEX = ("sequential", DRAWN)  # orders whose positions are the indices


@dataclass(frozen=True)
class Progression:
    """The positions first, first + stride, ..., `count` of them."""

    first: int
    stride: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one rank consumes of n samples in one phase of one epoch; `total`, `steps` and `everything` are of all."""

    n: int
    rank: int
    world: int
    contract: Contract = "exact"
    order: Order = "sequential"
    seed: int = 0  # of an order that shuffles, as `epoch` is
    epoch: int = 1
    start: int = 0  # the position from which on these ranks share the samples
    end: int | None = None  # the position before which the phase ends, each sample once; None: the whole order

    @property
    def size(self) -> int:
        """Samples that this rank consumes, repeats counted."""
        left = self._stop - self.start
        match self._contract:
            case "exact":
                return max(0, -(-(left - self.rank) // self.world))
            case "padded":
                return -(-left // self.world)
            case "drop_last":
                return left // self.world

    @property
    def total(self) -> int:
        """Samples that all ranks consume together from `start` on, repeats counted."""
        left = self._stop - self.start
        match self._contract:
            case "exact":
                return left
            case "padded":
                return left + -left % self.world
            case "drop_last":
                return left - left % self.world

    def steps(self, batch: int) -> int:
        """Steps of `batch` samples of all ranks together, which every rank makes."""
        return -(-self.total // batch)

    @property
    def progressions(self) -> list[Progression]:
        """This rank's positions, each below n: only `padded` reaches past n, with its last sample."""
        below = min(self.size, max(0, -(-(self._stop - self.start - self.rank) // self.world)))
        shard = [Progression(self.start + self.rank, self.world, below)]
        return shard if below == self.size else [*shard, Progression(self._position(below) % self.n, self.world, 1)]

    @property
    def everything(self) -> dict[Progression, int]:
        """All positions of the epoch, and how often: those before `start`, and the shards of all ranks from there on.

        Beyond n `padded` starts again at 0, more than once where there are fewer samples than ranks.
        """
        whole, rest = divmod(self.start + self.total, self.n)
        laps = {Progression(0, 1, self.n): whole, Progression(0, 1, rest): 1}
        return {lap: times for lap, times in laps.items() if lap.count and times}

    def positions(self, begin: int = 0, end: int | None = None) -> Indices:
        """Positions in the epoch's order of the shard's samples number `begin` to `end` (default: all of them)."""
        size = self.size
        end = size if end is None else min(end, size)
        begin = min(begin, end)
        own = np.arange(self._position(begin), self._position(end), self.world, dtype=np.int64)
        if len(own) and own[-1] >= self.n:  # of `padded` alone; a division takes long
            own %= self.n
        return own

    def indices(self, begin: int = 0, end: int | None = None) -> Indices:
        """Sample indices of the shard's samples number `begin` to `end`, in the order in which they are consumed."""
        own = self.positions(begin, end)
        if self.order == "feistel-1":
            return permutation.permute_in_place(own, self.n, self.seed, self.epoch)
        return self.samples_at(own)

    def samples_at(self, positions: Indices) -> Indices:
        """Sample indices at any positions of the epoch's order."""
        if isinstance(self.order, LocalOrder):
            return self.order.samples_at(positions, self.seed, self.epoch)
        if self.order in _BY_INDEX:
            return positions
        return permutation.permute(positions, self.n, self.seed, self.epoch)

    def positions_of(self, indices: Indices) -> Indices:
        """Positions of any samples in the epoch's order."""
        if isinstance(self.order, LocalOrder):
            return self.order.positions_of(indices, self.seed, self.epoch)
        if self.order in _BY_INDEX:
            return indices
        return permutation.locate(indices, self.n, self.seed, self.epoch)

    @property
    def _stop(self) -> int:
        return self.n if self.end is None else self.end

    @property
    def _contract(self) -> OfPositions:
        """Steps before the last one of an order repeat nothing and leave nothing out."""
        return "exact" if self.end is not None or self.contract == "as_drawn" else self.contract

    def _position(self, number: int) -> int:
        """Where sample `number` of this shard is, as if the order continued beyond n."""
        return self.start + self.rank + self.world * number
