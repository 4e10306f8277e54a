"""The order locality-1: the shard files of a dataset in a new order, and their samples shuffled a few files at a time.

Its places 0, 1, ... are the samples of the shard files, one file after another, in the order that feistel-1 gives the
files. The places divide evenly into `lanes`, one after another, and position p of the order is in lane p mod `lanes`.
Each `window` neighboring files are shuffled together, within a lane: block k of the places is in the order feistel-1 of
its size, with a seed that follows from the order's seed and k.

The table of the files' sizes is all that is stored: a position or a sample is found in it by binary search.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from torchtally.proof import permutation
from torchtally.proof.permutation import Domains, Indices, splitmix64
from torchtally.proof.shard_sizes import ShardSizes

NAME = "locality-1"
MOST = 1_000_000  # of a window or of lanes: far above any real one
_SPEC = re.compile(NAME + r" window=([1-9]\d{0,6}) lanes=([1-9]\d{0,6}) sizes=(sha256:[0-9a-f]{16})")
_MASK = (1 << 64) - 1
_BLOCK = 1 << 15  # indices a pass: the working set stays in the core's cache


class UnknownSizes(Exception):
    """Only the fingerprint of the sizes is known, so samples and positions cannot be told from each other."""


@dataclass(frozen=True)
class LocalOrder:
    """The order for shard files of these sizes. Its text names all that it follows from, beside n, seed and epoch."""

    window: int
    lanes: int
    sizes: ShardSizes

    def __str__(self) -> str:
        return f"{NAME} window={self.window} lanes={self.lanes} sizes={self.sizes.fingerprint}"

    @classmethod
    def parse(cls, text: str, sizes: ShardSizes | None = None) -> Self | None:
        """The order with this text; None if it is none. Its sizes are known if these are they."""
        found = _SPEC.fullmatch(text)
        if not found or max(int(found[1]), int(found[2])) > MOST:
            return None
        known = sizes if sizes and sizes.fingerprint == found[3] else ShardSizes(found[3])
        return cls(int(found[1]), int(found[2]), known)

    def samples_at(self, positions: Indices, seed: int, epoch: int) -> Indices:
        """Sample indices at positions of the epoch's order. Raises UnknownSizes."""
        return self._mapped(positions, seed, epoch, _Epoch.samples_at)

    def positions_of(self, indices: Indices, seed: int, epoch: int) -> Indices:
        """Positions of samples: the inverse of `samples_at`. Raises UnknownSizes."""
        return self._mapped(indices, seed, epoch, _Epoch.positions_of)

    def _mapped(self, values: Indices, seed: int, epoch: int, how: "Callable[[_Epoch, Indices], Indices]") -> Indices:
        found = np.empty(len(values), dtype=np.int64)
        if len(values):
            if self.sizes.array is None:
                raise UnknownSizes(self.sizes.fingerprint)
            tables = _epoch(self, seed, epoch)
            for at in range(0, len(values), _BLOCK):
                found[at : at + _BLOCK] = how(tables, values[at : at + _BLOCK])
        return found


class _Epoch:
    """The tables of an epoch: arrays as long as there are shard files."""

    def __init__(self, order: LocalOrder, seed: int, epoch: int):
        sizes = order.sizes.array
        assert sizes is not None
        ends = np.cumsum(sizes)
        n, count, self._lanes = int(ends[-1]), len(sizes), order.lanes
        shards = permutation.permute(np.arange(count), count, seed, epoch)
        self._firsts = ends - sizes  # the first sample of each shard file
        self._ends = np.cumsum(sizes[shards])  # of the places of each shard file, in their new order
        starts = self._ends - sizes[shards]
        self._to_sample = self._firsts[shards] - starts  # what to add to a place
        self._to_place = np.empty(count, dtype=np.int64)
        self._to_place[shards] = -self._to_sample  # what to add to a sample
        each, more = divmod(n, order.lanes)
        lanes = np.arange(min(order.lanes, n), dtype=np.int64)  # those that are not empty
        self._lane_starts = lanes * each + np.minimum(lanes, more)
        windows = starts[:: order.window]
        self._blocks = np.unique(np.concatenate([windows[windows < n], self._lane_starts]))
        numbers = np.arange(len(self._blocks), dtype=np.uint64)
        seeds = splitmix64(splitmix64(np.array([seed & _MASK], dtype=np.uint64)) + numbers)
        self._domains = Domains(np.diff(self._blocks, append=n), seeds, epoch)

    def samples_at(self, positions: Indices) -> Indices:
        if self._lanes > 1:
            positions = self._lane_starts[positions % self._lanes] + positions // self._lanes
        places = self._shuffled(positions, inverse=False)
        places += self._to_sample[np.searchsorted(self._ends, places, side="right")]
        return places

    def positions_of(self, indices: Indices) -> Indices:
        shards = np.searchsorted(self._firsts, indices, side="right") - 1
        places = self._shuffled(indices + self._to_place[shards], inverse=True)
        if self._lanes == 1:
            return places
        lanes = np.searchsorted(self._lane_starts, places, side="right") - 1
        positions: Indices = (places - self._lane_starts[lanes]) * self._lanes + lanes
        return positions

    def _shuffled(self, places: Indices, *, inverse: bool) -> Indices:
        blocks = np.searchsorted(self._blocks, places, side="right") - 1
        starts = self._blocks[blocks]
        within: Indices = places - starts
        self._domains.permute(within, blocks, inverse=inverse)
        within += starts
        return within


_epoch = lru_cache(maxsize=4)(_Epoch)
