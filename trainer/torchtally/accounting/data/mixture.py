"""A mixture of datasets by weights: rows of a plan that is computed, so that a proof of the rows is one of each source.

docs/guides/mixtures.md shows how.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from torchtally.accounting.data import facts
from torchtally.accounting.data.fingerprint import UNKNOWN, fingerprint, of_parts
from torchtally.accounting.order.locality import Locality
from torchtally.errors import Refused, whole
from torchtally.proof import interleaving, rules
from torchtally.proof.interleaving import Interleaving, Mix
from torchtally.proof.permutation import Indices, splitmix64
from torchtally.proof.shards import Shard

_MOST, _LONGEST = 128, 64  # sources and characters of a name: a line of the proof then stays under 16 KB


class Mixture(Dataset[Any]):
    """Rows that take turns among datasets by their weights. Each row is a sample of one of them.

    After any number of rows, each source has had less than one row more or less than its share. Its samples come in an
    order of its own, a new one each time that all of them were used. So each sample of a source is used as often as any
    other, or once more: ⌊rows / samples⌋ or ⌈rows / samples⌉ times.

    The rows are in the plan's order: pass `shuffle=False` to the loader. An epoch of the account is the whole mixture.

    Args:
        sources: Map-style datasets by their names.
        weights: Weight of each source, by its name. They must be in the ratio of whole numbers that add up to at most
            1000000.
        length: Number of rows.
        seed: Seed of the orders of the sources, from 0.
        order: Order of those sources that have an attribute `shard_sizes` (default: one over all samples, as that of
            the others).

    Attributes:
        fingerprint: Text that differs for another plan, and for sources of other lengths or fingerprints.

    Example:
        >>> mixture = Mixture({"web": range(100), "code": range(100, 110)}, {"web": 0.8, "code": 0.2}, length=100)
        >>> sum(sample >= 100 for sample in mixture), sum(sample >= 100 for sample in mixture[:10])
        (20, 2)
        >>> [str(name) for name, sample, epoch in map(mixture.place, range(5))]
        ['web', 'web', 'web', 'web', 'code']

    Raises:
        Refused: An argument is not valid.
    """

    ordered = True  # a loader with another order is refused

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float | Fraction],
        *,
        length: int,
        seed: int = 0,
        order: Locality | None = None,
    ):
        if not isinstance(sources, Mapping) or not isinstance(weights, Mapping):
            kinds = f"a {type(sources).__name__} and a {type(weights).__name__}"
            raise Refused(f"sources and weights must be dictionaries by the names of the sources, and are {kinds}")
        if not sources or {*sources} != {*weights}:
            raise Refused(f"weights must have the names of the sources, {_names(sources)}, and has {_names(weights)}")
        if len(sources) > _MOST:
            raise Refused(f"a mixture must have at most {_MOST} sources, and has {len(sources)}")
        for name, source in sources.items():
            if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST:
                raise Refused(f"the name {name!r} of a source must be printable text of at most {_LONGEST} characters")
            facts.check(source, f"the source {name}")
            if not len(source):
                raise Refused(f"the source {name} has no sample: leave it out of sources and weights")
        length, seed = whole("length", length, 1, (1 << 62) - 1), whole("seed", seed, 0, (1 << 64) - 1)
        try:
            turns = Interleaving.of([weights[name] for name in sources])
        except ValueError as error:
            raise Refused(f"weights={rules.short(str(dict(weights)), 60)} must be {error}") from None
        self._length, self._seed, self._turns = length, seed, turns
        self._names, self._sources = [*sources], [*sources.values()]
        self._sizes = [len(source) for source in self._sources]
        local = [order if order and hasattr(source, "shard_sizes") else None for source in self._sources]
        if order and not any(local):
            raise Refused(f"order={order} needs a source with the attribute shard_sizes")
        first = splitmix64(np.array([seed], dtype=np.uint64))
        numbers: NDArray[np.uint64] = np.arange(len(self._sources), dtype=np.uint64)
        seeds = splitmix64(first + numbers).tolist()
        self._orders = [
            Shard(
                n=size,
                rank=0,
                world=1,
                order=each.offered(source).of(size) if each else "feistel-1",
                seed=own,
            )
            for source, size, each, own in zip(self._sources, self._sizes, local, seeds, strict=True)
        ]

    @property
    def fingerprint(self) -> str:
        prints = [str(fingerprint(source) or UNKNOWN) for source in self._sources]
        orders = [str(each.order) for each in self._orders]
        lengths = [len(source) for source in self._sources]
        facts = [self._names, self._turns.weights, lengths, prints, orders, self._length, self._seed]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return of_parts(f"{interleaving.NAME} sha256:{digest}", prints)

    @property
    def mix(self) -> Mix:
        """What the proof states of the sources."""
        return Mix(dict(zip(self._names, self._sizes, strict=True)), self._turns)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return self.__getitems__(range(*row.indices(self._length)))
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Return the samples of rows, in this order. Raises IndexError, and Refused if a source has changed."""
        sources, indices, _ = self._places(rows)
        samples: list[Any] = [None] * len(sources)
        for number in np.unique(sources).tolist():
            at = np.flatnonzero(sources == number)
            named = f"the source {self._names[number]}"
            found = facts.checked(self._sources[number], indices[at].tolist(), self._sizes[number], named)
            for place, sample in zip(at.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    def place(self, row: int) -> tuple[str, int, int]:
        """Return the source of a row, the index of the sample in it, and the epoch of the source, from 1."""
        (source,), (index,), (epoch,) = (each.tolist() for each in self._places([row]))
        return self._names[source], index, epoch

    def row(self, source: str, index: int, epoch: int) -> int:
        """Return the row that has a sample in an epoch of its source: the inverse of `place`."""
        number = self._names.index(source)
        order = self._order(number, epoch)
        position = int(order.positions_of(np.array([index], dtype=np.int64))[0])
        return int(self._turns.rows_of(number, np.array([(epoch - 1) * order.n + position]))[0])

    def _order(self, source: int, epoch: int) -> Shard:
        return replace(self._orders[source], epoch=epoch)

    def _places(self, rows: Sequence[int]) -> tuple[Indices, Indices, Indices]:
        """The number of each row's source, the index of its sample, and the epoch of the source."""
        wanted = np.asarray(rows, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self._length:
            raise IndexError(f"rows must be from 0 to {self._length - 1}")
        sources, numbers = self._turns.at(wanted)
        before, positions = np.divmod(numbers, np.array(self._sizes, dtype=np.int64)[sources])
        epochs, indices = before + 1, np.empty_like(positions)
        for source, epoch in {*zip(sources.tolist(), epochs.tolist(), strict=True)}:
            at = np.flatnonzero((sources == source) & (epochs == epoch))
            indices[at] = self._order(source, epoch).samples_at(positions[at])
        return sources, indices, epochs


def _names(of: Mapping[str, Any]) -> str:
    return ", ".join(map(str, of)) or "none"
