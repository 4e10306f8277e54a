"""What a dataset says of itself, which must not change while its loader lives: indices would name other samples."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from torchtally.accounting.data.fingerprint import fingerprint
from torchtally.proof.permutation import Indices
from torchtally.proof.shard_sizes import ShardSizes


@dataclass(frozen=True)
class Facts:
    """A dataset's length, and its attributes `fingerprint` and `shard_sizes` if it has them."""

    length: int
    fingerprint: str | None
    sizes: Indices | None

    @classmethod
    def of(cls, dataset: Any) -> Self:
        """What a dataset says now."""
        sizes = None
        if (stated := getattr(dataset, "shard_sizes", None)) is not None:
            try:
                sizes = ShardSizes.of(stated).array
            except ValueError:  # an attribute of that name which is no list of sizes
                sizes = None
        return cls(len(dataset), fingerprint(dataset), sizes)

    def changed(self, dataset: Any) -> str | None:
        """What the dataset says otherwise now, in a sentence with both values."""
        now = self.of(dataset)
        if now.length != self.length:
            return changed_length(self.length, now.length)
        if now.fingerprint != self.fingerprint:
            before, after = self.fingerprint, now.fingerprint
            return f"the dataset's fingerprint was {before} when its loader was made, it is {after} now"
        had, has = (np.empty(0) if each is None else each for each in (self.sizes, now.sizes))
        if len(had) != len(has):
            return f"the dataset had {len(had)} shard_sizes when its loader was made, it has {len(has)} now"
        for at in np.flatnonzero(had != has)[:1].tolist():
            return f"the dataset's shard_sizes[{at}] was {had[at]} when its loader was made, it is {has[at]} now"
        return None


def changed_length(before: int, now: int) -> str:
    """The sentence for a dataset that has another length now."""
    return f"the dataset had {before} samples when its loader was made, it has {now} now"
