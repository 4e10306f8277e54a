"""Loaders that carry each sample of any dataset to the loop with its index, through any number of workers."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import data

from torchtally.errors import Refused, Unproven
from torchtally.proof.contract import Contract
from torchtally.proof.permutation import Order
from torchtally.proof.shards import Shard

_CHUNK = 1 << 15  # indices computed at a time: many steps' worth, little memory

Collate = Callable[[list[Any]], Any]


class Batch(NamedTuple):
    """The samples that one rank consumes in one step.

    Attributes:
        indices: Indices of the samples, int64 (samples,), on the CPU.
        data: The samples as the `collate_fn` returned them.
        rows: Number of samples of all ranks in this step; 0 until `Account.epoch` yields the batch.
    """

    indices: Tensor
    data: Any
    rows: int = 0


class Sampler(data.Sampler[int]):
    """This rank's part of an epoch's order.

    On its own, it replaces a DistributedSampler and proves nothing:
    `DataLoader(dataset, batch_size=32, sampler=Sampler(len(dataset)))`, with `set_epoch` before each epoch. If DDP
    needs equally many batches on every rank, use the contract `padded` or `drop_last`.

    Args:
        n: Number of samples of the dataset.
        batch_size: Samples of this rank in a step. It only matters for `steps`.
        seed: Seed of the order of samples, from 0.
        shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
        contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`.
        rank: This process's rank (default: that of the process group).
        world: Number of ranks (default: that of the process group).
    """

    def __init__(
        self,
        n: int,
        *,
        batch_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        contract: Contract = "exact",
        rank: int | None = None,
        world: int | None = None,
    ):
        self.n, self.batch_size, self.seed, self.contract = n, batch_size, seed, contract
        self.order: Order = "feistel-1" if shuffle else "sequential"
        self.rank = dist.get_rank() if rank is None else rank
        self.world = dist.get_world_size() if world is None else world
        # Shared with workers that outlive an epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def shard(self) -> Shard:
        """What this rank consumes in the epoch that `set_epoch` chose."""
        return Shard(
            n=self.n,
            rank=self.rank,
            world=self.world,
            contract=self.contract,
            order=self.order,
            seed=self.seed,
            epoch=int(self._epoch),
        )

    @property
    def batch(self) -> int:
        """Samples of all ranks in a step."""
        return self.batch_size * self.world

    @property
    def total(self) -> int:
        """Samples of all ranks in an epoch."""
        return self.shard.total

    @property
    def idle(self) -> bool:
        """Whether this rank has no sample in the last step, which all ranks make."""
        return len(Steps(self)) * self.batch_size - len(self) >= self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch.fill_(epoch)

    def steps(self) -> Iterator[list[int]]:
        """Yield this rank's indices of each step. All ranks have equally many steps; the last one can be empty."""
        shard = self.shard
        chunk = max(1, _CHUNK // self.batch_size) * self.batch_size
        for at in range(0, shard.size, chunk):
            some = shard.indices(at, at + chunk).tolist()
            for begin in range(0, len(some), self.batch_size):
                yield some[begin : begin + self.batch_size]
        if self.idle:
            yield []

    def __iter__(self) -> Iterator[int]:
        for indices in self.steps():
            yield from indices

    def __len__(self) -> int:
        return self.shard.size


class Steps(data.Sampler[list[int]]):
    """A Sampler whose items are the index lists of steps, which DataLoader's workers fetch at a time."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.steps()

    def __len__(self) -> int:
        return -(-self.sampler.total // self.sampler.batch)


class ByStep(data.Dataset[Any]):
    """A dataset whose items are the batches of steps: (indices, data), or the Batch that `collate` returned."""

    def __init__(self, dataset: Any, collate: Collate):
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, indices: list[int]) -> Any:
        if not indices:
            return _nothing(self.collate, self._samples([0])[0])
        return _together(self.collate, indices, self._samples(indices))

    def _samples(self, indices: list[int]) -> list[Any]:
        all_at_once = getattr(self.dataset, "__getitems__", None)
        return list(all_at_once(indices)) if all_at_once else [self.dataset[index] for index in indices]


class StreamByStep(data.IterableDataset[Any]):
    """The same for an IterableDataset that has `select`: worker k of W reads the steps k, k + W, k + 2W, ..."""

    def __init__(self, dataset: Any, sampler: Sampler, collate: Collate):
        self.dataset, self.sampler, self.collate = dataset, sampler, collate

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset.select(index for step in self._own() for index in step))
        sample = None
        for step in self._own():
            pairs = list(islice(samples, len(step)))
            if not pairs:
                return  # the stream ended early, which `Account.epoch` detects
            indices, values = zip(*pairs, strict=True)
            sample = values[-1]
            yield _together(self.collate, list(indices), list(values))
        # DataLoader polls the workers in turn and skips those that have ended, so this batch comes last.
        info = data.get_worker_info()
        if self.sampler.idle and (info is None or info.id == 0):
            yield _nothing(self.collate, sample)

    def _own(self) -> Iterator[list[int]]:
        info = data.get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        return filter(None, islice(self.sampler.steps(), first, None, stride))


def loader(dataset: Any, sampler: Sampler, collate_fn: Collate | None = None, **options: Any) -> data.DataLoader[Any]:
    """A DataLoader of `sampler`'s steps, whose batches are (indices, data); `options` are DataLoader's."""
    collate = collate_fn or data.default_collate
    if isinstance(dataset, data.IterableDataset):
        stream = StreamByStep(dataset, sampler, collate)
        return data.DataLoader(stream, batch_size=None, collate_fn=_as_it_is, **options)
    steps = ByStep(dataset, collate)
    return data.DataLoader(steps, batch_size=None, sampler=Steps(sampler), collate_fn=_as_it_is, **options)


class Epochs:
    """The data of one epoch after another, for a library that drives the loop: each `iter()` is the next epoch.

    Its length is the number of batches, so libraries need not fetch a batch ahead to see the end. If one does, a batch
    counts early, and the epoch's end is right all the same. A library that stops after the last batch does not ask for
    the next one, which would count the last. The next `iter()` or `end()` counts it.
    """

    def __init__(self, epoch: Callable[[int], Iterator[Batch]], steps: int):
        self._epoch, self._steps = epoch, steps
        self._made = self._taken = 0  # epochs begun, and batches handed out in the last of them
        self._batches: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self.end()
        self._made, self._taken = self._made + 1, 0
        self._batches = self._epoch(self._made)
        for batch in self._batches:
            self._taken += 1
            yield batch.data

    def __len__(self) -> int:
        return self._steps

    def end(self) -> None:
        """End the epoch: count the last batch if the library has taken all of them."""
        if self._taken == self._steps:
            next(self._batches, None)


def checked(taken: Any, where: str) -> Batch:
    """Return a loader's item as a Batch. Raises Refused and Unproven if its rows cannot be those of its indices."""
    indices = taken[0] if isinstance(taken, list | tuple) and len(taken) > 1 else None
    if isinstance(indices, list):
        indices = torch.tensor(indices, dtype=torch.int64)
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1:
        raise Refused(f"{where}: the loader's batches must be pairs of indices and data, as account.loader makes them")
    batch = Batch(indices, taken[1])
    found = _sizes(batch.data)
    if not len(indices) and 0 not in found:
        raise Refused(
            f"{where}: this rank has no sample left, and the {type(batch.data).__name__} of the collate_fn cannot be "
            "cut to 0 rows: use contract padded or drop_last"
        )
    # A collate_fn that returns a Batch names its samples.
    if found and len(indices) not in found and not isinstance(taken, Batch):
        raise Unproven(
            f"{where} is not proved: of the {len(indices)} samples {_few(indices)} the collate_fn made a batch with "
            f"parts of {', '.join(map(str, sorted(found)))} rows. One that leaves out, repeats or packs samples must "
            "return Batch(indices, data) itself"
        )
    return batch


def _few(indices: Tensor) -> str:
    shown = ", ".join(map(str, indices[:8].tolist()))
    return shown if len(indices) <= 8 else f"{shown}, …"


def _sizes(part: Any) -> set[int]:
    """Leading sizes of all tensors and lengths of all sequences in a batch; one of them is its number of samples."""
    if isinstance(part, Tensor | np.ndarray):
        return {len(part)} if part.ndim else set()
    if isinstance(part, Mapping):
        return set().union(*map(_sizes, part.values()))
    if isinstance(part, list | tuple):
        return {len(part)}.union(*map(_sizes, part))
    return set()


def _together(collate: Collate, indices: list[int], samples: list[Any]) -> Any:
    made = collate(samples)
    # A collate_fn that received the indices with the samples names them.
    return made if isinstance(made, Batch) else (torch.tensor(indices, dtype=torch.int64), made)


def _nothing(collate: Collate, sample: Any) -> Any:
    """The batch of a rank without samples in the last step: a batch of samples like `sample`, cut to 0 rows."""
    none = _extrapolated(collate([sample]), collate([sample, sample]))
    return none if isinstance(none, Batch) else (torch.empty(0, dtype=torch.int64), none)


def _extrapolated(one: Any, two: Any) -> Any:
    """The batch of 0 samples, from the batches of 1 and 2: each part is cut by as much as it grew."""
    if isinstance(one, Tensor | np.ndarray):
        return one[: max(0, 2 * len(one) - len(two))] if one.ndim else one
    if isinstance(one, MutableMapping):
        none = copy.copy(one)
        none.update({key: _extrapolated(one[key], two[key]) for key in one})
        return none
    if isinstance(one, list | tuple):
        if len(one) != len(two):
            return one[: max(0, 2 * len(one) - len(two))]
        parts: Iterable[Any] = map(_extrapolated, one, two)
        return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)
    return one


def _as_it_is(batch: Any) -> Any:
    return batch
