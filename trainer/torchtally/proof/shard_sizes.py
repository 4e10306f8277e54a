"""The only table of the order locality-1: how many samples each shard file of a dataset has."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta

from torchtally.proof.modular import exact_sum
from torchtally.proof.permutation import Indices

MOST = 1 << 24  # shard files: the order's arrays then take half a gigabyte
# So many neighbors of so many samples each.
Run = tuple[Annotated[int, Meta(ge=1, le=MOST)], Annotated[int, Meta(ge=0, lt=1 << 62)]]
STATED = 1024  # runs that a line or a state has at most: it then stays under 16 KB, at which runtimes cut lines


class ShardSizes:
    """Sizes of consecutive shard files. Where only the fingerprint is known, `array` is None."""

    def __init__(self, fingerprint: str, array: Indices | None = None) -> None:
        self.fingerprint, self.array = fingerprint, array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardSizes) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Self:
        """Raises ValueError that says what sizes must be."""
        found = np.asarray(sizes)
        if found.ndim != 1 or found.dtype.kind not in "iu" or not 1 <= len(found) <= MOST or found.min() < 0:
            raise ValueError(f"1 to {MOST} whole numbers from 0, one for each shard file")
        array = found.astype(np.int64)
        return cls("sha256:" + hashlib.sha256(array.astype(">i8").tobytes()).hexdigest()[:16], array)

    @classmethod
    def of_runs(cls, runs: Any) -> Self:
        """The sizes in run-length form, each run as long as it can be. Raises ValueError for anything else."""
        try:
            known = msgspec.convert(runs, list[Run])
        except msgspec.ValidationError:
            raise ValueError("a list of [count, size]") from None
        counts, sizes = zip(*known, strict=True) if known else ((), ())
        if sum(counts) > MOST:
            raise ValueError("a list of [count, size]")
        if any(one == other for one, other in pairwise(sizes)):
            raise ValueError("runs of different sizes")
        return cls.of(np.repeat(np.array(sizes, dtype=np.int64), counts))  # type: ignore[arg-type]

    @property
    def total(self) -> int:
        """Number of samples. Only where the sizes are known."""
        assert self.array is not None
        return exact_sum(self.array.astype(np.uint64))

    @property
    def runs(self) -> list[Run]:
        """The sizes in run-length form. Only where they are known."""
        assert self.array is not None
        first = np.flatnonzero(np.diff(self.array, prepend=-1))
        counts = np.diff(first, append=len(self.array))
        return [*zip(counts.tolist(), self.array[first].tolist(), strict=True)]


def stated_runs(sizes: ShardSizes | None) -> list[Run] | None:
    """The runs that a line states, if the sizes are known and it has room for them."""
    if sizes is None or sizes.array is None or np.count_nonzero(np.diff(sizes.array)) >= STATED:
        return None
    return sizes.runs


def by_fingerprint(several: Iterable[ShardSizes | None]) -> dict[str, ShardSizes]:
    """Those that are known."""
    return {each.fingerprint: each for each in several if each is not None and each.array is not None}
