"""Random access to the samples of shard files: a process opens few of them at a time, and a batch each of them once."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from torchtally.errors import Refused, whole


class Shards(Dataset[Any], ABC):
    """A map-style dataset over shards, whose samples are numbered through all of them.

    Every process opens its own shards, so that a DataLoader may fork or spawn its workers.

    Attributes:
        shard_sizes: Number of samples of each shard.
        fingerprint: Text that differs for other data, as far as the description of the shards tells.
    """

    def __init__(self, kind: str, shard_sizes: Sequence[int], description: Any, open_shards: int):
        """
        Args:
            kind: Format of the shards.
            shard_sizes: Number of samples of each shard.
            description: What the fingerprint is computed from: anything that JSON can express.
            open_shards: Number of shards that a process keeps open.
        """
        open_shards = whole("open_shards", open_shards)
        self.shard_sizes = list(shard_sizes)
        if not sum(self.shard_sizes):
            raise Refused(f"the {kind} data has no sample in its {len(self.shard_sizes)} shards")
        described = json.dumps([kind, self.shard_sizes, description]).encode()
        self.fingerprint = f"{kind} sha256:{hashlib.sha256(described).hexdigest()[:16]}"
        self._ends = np.cumsum(self.shard_sizes)
        self._most = open_shards
        self._opened: OrderedDict[int, Any] = OrderedDict()  # by number, the most recently used last
        self._pid = os.getpid()

    @abstractmethod
    def _open(self, shard: int) -> Any:
        """Open a shard. Raises Refused if it is not the one that was described, and Volume if it cannot be read."""

    @abstractmethod
    def _read(self, opened: Any, rows: list[int]) -> list[Any]:
        """Return the samples in rows of a shard."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at `indices`, in this order. Raises IndexError."""
        numbers = np.asarray(indices, dtype=np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"indices must be from 0 to {len(self) - 1}")
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, shard in enumerate(np.searchsorted(self._ends, numbers, side="right").tolist()):
            places[shard].append(place)
        samples: list[Any] = [None] * len(numbers)
        # What is open comes first, before others take its place.
        for shard in sorted(places, key=lambda shard: shard not in self._opened):
            first = int(self._ends[shard]) - self.shard_sizes[shard]
            rows = (numbers[places[shard]] - first).tolist()
            for place, sample in zip(places[shard], self._read(self._at(shard), rows), strict=True):
                samples[place] = sample
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": OrderedDict()}

    def _at(self, shard: int) -> Any:
        if self._pid != os.getpid():  # a fork shares the position in its parent's files
            self._opened, self._pid = OrderedDict(), os.getpid()
        if shard not in self._opened:
            self._opened[shard] = self._open(shard)
            if len(self._opened) > self._most:
                self._opened.popitem(last=False)
        self._opened.move_to_end(shard)
        return self._opened[shard]
