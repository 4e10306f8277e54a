"""Loaders that carry each sample of any dataset to the loop with its index, through any number of workers."""

import inspect
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import data

from torchtally.accounting import randomness
from torchtally.accounting.batches.collate import (
    Batch,
    Collate,
    Collater,
    is_known,
    untold,
    whole,
    wrong_sizes,
)
from torchtally.accounting.data.facts import changed_length, fetched
from torchtally.accounting.order.drawn import AnySampler, Draw
from torchtally.accounting.order.schedule import Schedule, Step
from torchtally.errors import Ending, Refused, Unproven
from torchtally.proof.order import DRAWN
from torchtally.proof.permutation import Indices

# Options of a DataLoader that say how it loads, and not what: it has them as attributes.
LOADING_OPTIONS = (
    "collate_fn",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)
_TRIED = 1000  # samples, to make a batch of none
_TAKEN = {"batch_sampler", "batch_size", "drop_last", "sampler", "shuffle"}
# For streams of libraries, by the name of the package.
_INSTEAD = {
    "datasets": ": load it without streaming=True, or read its files by torchtally.streams.parquet.ParquetFiles",
    "streaming": ": read it by torchtally.streams.mds.MDS",
    "webdataset": ": read it by torchtally.streams.webdataset.TarFiles",
}
NOTHING: Mapping[int, str] = {}
Asked = tuple[int, Step]  # a request's number, and its step
# Its number, the seed of what the dataset draws, the indices of its step, and where to begin with a filler if need be.
Request = tuple[int, int, list[int], int | None]


class Taken(NamedTuple):
    """A batch that a loader yields.

    Attributes:
        indices: Its samples, int64 (samples,).
        data: What the collate_fn has made of them.
        dropped: Samples that the collate_fn has left out, with the reasons.
        asked: Its step, with the same object as `indices` where nothing else was said; None if the loader does not know
            the steps.
    """

    indices: Indices
    data: Any
    dropped: Mapping[int, str] = NOTHING
    asked: Step | None = None

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of an epoch: that is known once it is counted."""
        return False

    @property
    def batch(self) -> Batch:
        """It for a loop that takes it with its indices."""
        return Batch(torch.tensor(self.indices), self.data, dropped=self.dropped)


class ByStep(data.Dataset[Any]):
    """A dataset whose items are the batches of steps, each with the number of its request."""

    def __init__(self, dataset: Any, n: int, collate: Collate):
        self.dataset, self.n, self.collater = dataset, n, Collater(collate)
        plain = type(dataset) is data.TensorDataset and collate is data.default_collate
        self.at_once = plain and len({each.device for each in dataset.tensors}) == 1

    def __getitem__(self, request: Request) -> tuple[int, Any]:
        number, seed, indices, filler = request
        if (now := len(self.dataset)) != self.n:
            return number, Refused(changed_length(self.n, now))
        randomness.reseed(seed)
        try:
            if not indices:
                return number, self._none() if filler is None else self._filler(filler)
            made = self._made(indices)
            if not isinstance(made, Batch) or len(made.indices):
                return number, made
            if filler is None and made.data is not None:
                return number, made
            instead = self._none() if filler is None else self._filler(filler)
            return number, instead if isinstance(instead, Ending) else made._replace(data=instead)
        except Ending as ending:  # of a dataset: a worker would make a traceback of it
            return number, ending

    def rows(self, schedule: Schedule | Draw, *, fills: bool) -> Iterator[Taken]:
        """Yield the batches of tensors: rows at once, on their device."""
        device, filler = self.dataset.tensors[0].device, torch.tensor([schedule.filler]) if fills else None
        for step in schedule.left():
            if (now := len(self.dataset)) != self.n:
                raise Refused(changed_length(self.n, now))
            chosen = torch.from_numpy(step.indices) if filler is None or len(step.indices) else filler
            chosen = chosen.to(device, non_blocking=True)
            yield Taken(step.indices, [each[chosen] for each in self.dataset.tensors], NOTHING, step)

    def _filler(self, first: int) -> Any:
        """The data of one sample that is not dropped, from the `first` on, or the error."""
        for index in islice(chain([first], range(len(self.dataset))), _TRIED):
            made = self._made([index])
            if not isinstance(made, Batch):
                return made
            if len(made.indices):
                return made.data
        return self._dropped

    @property
    def _dropped(self) -> Refused:
        tried = min(_TRIED, len(self.dataset))
        none = "so that no empty batch can be made: keep one of them"
        return Refused(f"the collate_fn drops all of the first {tried} samples, {none}")

    def _none(self) -> Any:
        """The data of 0 samples, or the error. It is cut from a sample that is not dropped."""
        tried = min(_TRIED, len(self.dataset))
        made = (self.collater.none(self._fetched, index) for index in range(tried))
        return next((each for each in made if each is not None), self._dropped)

    def _made(self, indices: list[int]) -> Any:
        if self.at_once:  # the same batch, without a tensor for each sample
            rows = torch.tensor(indices)
            return [each[rows] for each in self.dataset.tensors]
        return self.collater.make(self._fetched(indices), indices, self._fetched)

    def _fetched(self, indices: list[int]) -> Any:
        return fetched(self.dataset, indices)


class Requests(data.Sampler[Request]):
    """What DataLoader's workers are asked for: numbered index lists of steps. `asked` has those not yet answered."""

    def __init__(self, sampler: AnySampler):
        self.sampler = sampler
        self.asked: deque[Asked] = deque()
        self.fills = False

    def __iter__(self) -> Iterator[Request]:
        self.asked = deque()
        return self._made(self.asked, self.sampler.schedule)

    def _made(self, asked: deque[Asked], schedule: Schedule | Draw) -> Iterator[Request]:
        shard, filler = schedule.shard, schedule.filler if self.fills else None
        # What a dataset draws follows from seed, epoch and step, whichever process fetches it, at any number of ranks.
        seed = randomness.mixed(shard.seed, shard.epoch)
        for number, step in enumerate(schedule.left(), schedule.skip):
            asked.append((number, step))
            indices = step.indices.tolist()
            if not indices:
                own = randomness.mixed(seed, shard.rank)
            elif shard.order == DRAWN:  # a sample can be drawn more than once
                own = randomness.mixed(seed + number * shard.world + shard.rank)
            else:
                own = randomness.mixed(seed + indices[0])
            yield number, own, indices, filler

    def __len__(self) -> int:
        return self.sampler.schedule.steps


class StepLoader(data.DataLoader[Any]):
    """A DataLoader of a sampler's steps, whose items are `Taken`.

    The indices do not travel through the workers, which would need shared memory for each batch. This process knows
    which it asked for, and each answer carries the number of its request. Only samples that are others than those of
    the step, by the word of the collate_fn, come with their indices.

    Attributes:
        fills: Whether a rank that has no sample in a step, as none is left or all are dropped, receives a filler, a
            sample that is none of the step's, in place of an empty batch: `Account.weigh` multiplies its loss with 0.
    """

    fills = False
    makes_empty_batches = True

    def __init__(self, dataset: Any, sampler: AnySampler, collate_fn: Collate | None = None, **options: Any):
        if taken := sorted(options.keys() & _TAKEN):
            raise Refused(f"the loader of an account sets {', '.join(taken)} itself")
        options["worker_init_fn"] = partial(_begin_worker, options.get("worker_init_fn"))
        collate = collate_fn or data.default_collate
        self._steps, self._requests = ByStep(dataset, sampler.n, collate), Requests(sampler)
        super().__init__(self._steps, batch_size=None, sampler=self._requests, collate_fn=_as_it_is, **options)

    @property
    def _at_once(self) -> bool:
        """Whether it has a dataset of tensors, of which no Python code makes samples."""
        return self._steps.at_once and not (self.num_workers or self.pin_memory)

    @property
    def seeds(self) -> bool:
        """Whether it seeds the generators for each batch, in this process: what the loop draws follows from that."""
        return not self.num_workers and not self._at_once

    @property
    def source(self) -> Any:
        """The dataset that it was made of."""
        return self._steps.dataset

    def __iter__(self) -> Iterator[Taken]:  # type: ignore[override]
        requests, requests.fills = self._requests, self.fills
        if self._at_once:
            return self._steps.rows(requests.sampler.schedule, fills=self.fills)
        if not self.num_workers and not self.pin_memory:
            # DataLoader's own loop would take a third of a small step, most of it for the profiler.
            return _answered(map(self.dataset.__getitem__, requests), requests.asked)
        return _answered(super().__iter__(), requests.asked)


def _begin_worker(own: Callable[[int], object] | None, number: int) -> None:
    """Keep from a worker the signals that torchrun's agent sends to its rank's group: the rank still needs it."""
    os.setpgrp()
    if own:
        own(number)


def options_problem(options: Mapping[str, Any]) -> str | None:
    """Return why account.loader() cannot take these arguments for the DataLoader."""
    for name in options:
        if name not in inspect.signature(data.DataLoader).parameters:
            return f"account.loader() takes no argument {name}, and neither does a DataLoader"
    collate = options.get("collate_fn")
    return None if collate is None or callable(collate) else f"collate_fn={collate!r} must be a function"


def dataset_problem(dataset: Any) -> str | None:
    """Return why account.loader() cannot take a dataset, and what to do about it."""
    if isinstance(dataset, data.DataLoader):
        return (
            f"a {type(dataset).__name__} is no dataset: pass its dataset, and its batch_size and other arguments to "
            "account.loader()"
        )
    if hasattr(dataset, "__len__") and not isinstance(dataset, data.IterableDataset):
        return None
    libraries = (kind.__module__.partition(".")[0] for kind in type(dataset).__mro__)
    advice = next((_INSTEAD[library] for library in libraries if library in _INSTEAD), "")
    return f"a {type(dataset).__name__} must be a map-style dataset, with __len__ and __getitem__{advice}"


def checked(taken: Any, batches: Any, where: str) -> Taken:
    """Return an item of any other loader as Taken. Raises Refused and Unproven if its samples are not known."""
    if isinstance(taken, Batch):
        array = whole(taken.indices)
        if array is None:
            raise Refused(f"{where}: the indices of a Batch must be a list of integers, and are {taken.indices!r:.80}")
        return Taken(array, taken.data, taken.dropped)
    # Without a batch_sampler, the batches are made by the dataset, or by what drives the loader.
    own = isinstance(batches, data.DataLoader)
    if not own or batches.batch_sampler is None:
        kind = f"{type(batches).__name__}{' without batch_size' if own else ''}"
        raise Refused(f"{where}: the batches of a {kind} must be torchtally.Batch(indices, data)")
    if not is_known(batches.collate_fn):
        raise Refused(f"{where}: {untold(batches.collate_fn, taken)}")
    indices = taken[0] if isinstance(taken, list | tuple) and len(taken) == 2 else None
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1:
        raise Refused(
            f"{where}: the loader's batches must be pairs of indices and data, as account.loader makes them: pass the "
            "dataset to account.loader(), or let its items be pairs"
        )
    if problem := wrong_sizes(batches.collate_fn, taken[1], indices.tolist()):
        raise type(problem)(f"{where}: {problem}")
    return Taken(indices.numpy(), taken[1])


def _answered(answers: Iterator[Any], requests: deque[Asked]) -> Iterator[Taken]:
    for number, made in answers:
        asked, step = requests.popleft() if requests else (None, None)
        if step is None or number != asked:
            raise Unproven("the loader's batches came in another order than that of its steps")
        if isinstance(made, Ending):
            raise made
        if isinstance(made, Batch):
            yield Taken(made.indices, made.data, made.dropped, step)  # type: ignore[arg-type]  # an array here
        else:
            yield Taken(step.indices, made, NOTHING, step)


def _as_it_is(batch: Any) -> Any:
    return batch
