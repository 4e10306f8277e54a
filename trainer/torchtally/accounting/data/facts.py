"""What a dataset says of itself, which must not change while its loader lives: indices would name other samples."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from torch.utils.data import IterableDataset

from torchtally.accounting.data.fingerprint import fingerprint
from torchtally.errors import Refused, Unproven
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
    known = f"the dataset had {before} samples when its loader was made, it has {now} now"
    return f"{known}: make the loader after the change"


def check(dataset: Any, name: str) -> None:
    """Raise Refused unless the dataset gives a sample by its number."""
    stream = isinstance(dataset, IterableDataset)
    if stream or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise Refused(f"{name} must be a map-style dataset, and is a {type(dataset).__name__}")


def fetched(dataset: Any, indices: list[int]) -> Any:
    """Return the samples at `indices` of a dataset, which can fetch them all at once in a form of its own."""
    at_once = getattr(dataset, "__getitems__", None)
    return at_once([*indices]) if at_once else [dataset[index] for index in indices]


def checked(dataset: Any, indices: list[int], length: int, name: str) -> list[Any]:
    """Return a list of the same, of a dataset that must have its length. Raises Refused and Unproven."""
    if (now := len(dataset)) != length:
        raise Refused(f"{name}: {changed_length(length, now)}")
    found = fetched(dataset, indices)
    if not isinstance(found, list):
        raise Refused(f"{name}: its __getitems__ must return a list, and returned a {type(found).__name__}")
    if len(found) != len(indices):
        raise Unproven(
            f"{name}: for {len(indices)} samples its __getitems__ returned {len(found)}, and must return one for each"
        )
    return found
