"""The order that a user chooses for a dataset in shard files, before the sizes of the files are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torchtally.errors import Refused, whole
from torchtally.proof.local_order import MOST, LocalOrder
from torchtally.proof.shard_sizes import ShardSizes


@dataclass(frozen=True, kw_only=True)
class Locality:
    """An order with locality, for a dataset that is read from shard files: each epoch, few of them are open at a time.

    Each epoch has a new order of the files, and shuffles the samples of `window` neighboring files together.

    Args:
        window: Number of shard files that are shuffled together.
        lanes: Number of places of the order that are read at the same time. With the number of ranks, each rank reads
            files of its own. The order depends on it, so it stays the same if the number of ranks changes.
        sizes: Number of samples of each shard file, in the dataset's order (default: the dataset's attribute
            `shard_sizes`).
    """

    window: int
    lanes: int = 1
    sizes: Sequence[int] | None = field(default=None, repr=False)

    def offered(self, dataset: Any) -> Self:
        """Return this with the sizes that a dataset offers, unless it has some."""
        return replace(self, sizes=getattr(dataset, "shard_sizes", None)) if self.sizes is None else self

    def of(self, n: int) -> LocalOrder:
        """Return the order of n samples. Raises Refused."""
        window, lanes = whole("Locality: window", self.window, 1, MOST), whole("Locality: lanes", self.lanes, 1, MOST)
        if self.sizes is None:
            raise Refused(f"{self} needs the dataset's attribute shard_sizes, or Locality(sizes=…, …)")
        try:
            sizes = ShardSizes.of(self.sizes)
        except ValueError as error:
            raise Refused(f"the sizes of the shard files must be {error}") from None
        if sizes.total != n:
            raise Refused(
                f"the sizes of the shard files add up to {sizes.total}, and the dataset has {n} samples: give each "
                "file's number of samples"
            )
        return LocalOrder(window, lanes, sizes)


def check_order(order: object) -> None:
    """Raise Refused unless it is a Locality, or None."""
    if not isinstance(order, Locality | None):
        raise Refused(f"order={order!r} must be a Locality, or None for an order over all samples")
