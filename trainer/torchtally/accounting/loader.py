"""Loaders that carry each sample of any dataset to the loop with its index, through any number of workers."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from torchtally.accounting import randomness
from torchtally.accounting.sampler import Sampler, Steps
from torchtally.errors import Refused, Unproven

Collate = Callable[[list[Any]], Any]


class Batch(NamedTuple):
    """The samples that one rank consumes in one step.

    Attributes:
        indices: Indices of the samples, int64 (samples,), on the CPU.
        data: The samples as the `collate_fn` returned them.
        rows: Number of samples of all ranks in this step; 0 until `Account.epoch` yields the batch, which sets the
            following, too.
        phase: Name of the phase.
        step: Number of the step in its epoch, from 1, or from the position on where other ranks have resumed.
        steps: Number of the last step.
    """

    indices: Tensor
    data: Any
    rows: int = 0
    phase: str = ""
    step: int = 0
    steps: int = 0


class ByStep(data.Dataset[Any]):
    """A dataset whose items are the batches of steps: (indices, data), or the Batch that `collate` returned."""

    def __init__(self, dataset: Any, sampler: Sampler, collate: Collate):
        self.dataset, self.sampler, self.collate = dataset, sampler, collate

    def __getitem__(self, indices: list[int]) -> Any:
        _reseed(self.sampler, indices)
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
            _reseed(self.sampler, step)
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
    steps = ByStep(dataset, sampler, collate)
    return data.DataLoader(steps, batch_size=None, sampler=Steps(sampler), collate_fn=_as_it_is, **options)


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


def _reseed(sampler: Sampler, indices: list[int]) -> None:
    """Let what a dataset draws follow from seed, epoch and step, whichever process fetches it."""
    randomness.reseed(randomness.mixed(sampler.seed, sampler.shard.epoch, *indices[:1]))


def _as_it_is(batch: Any) -> Any:
    return batch
