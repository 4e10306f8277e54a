"""Data that differs: between ranks, of which each can have its own, or from what it was as its loader was made."""

import os
import random
import time
import zlib
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from torchtally.accounting import randomness
from torchtally.accounting.batches.sizes import parts
from torchtally.accounting.batches.step_loader import ByStep
from torchtally.accounting.data.facts import Facts
from torchtally.accounting.guards.guard import Guard

_FEW = 8  # samples
_HASHES = 16  # of a sample: beyond, several of its leaves share one
_SECONDS = 30  # for all reads, of which a slow dataset makes fewer

Sample = tuple[int, list[int]]  # its index, and the hashes of its leaves, 0 for those that cannot be compared
Saved = tuple[tuple[int, ...], ...]  # in a state: what must be in common to be compared, and then each sample


class Contents(Guard):
    """Compares the same few samples of all ranks before the first epoch, and with those of a loaded state."""

    name = "contents"


class Changed(Guard):
    """Compares what a dataset says of itself with what it said when its loader was made."""

    name = "changed"

    def __init__(self) -> None:
        self._facts: dict[str, tuple[Any, Facts]] = {}

    def note(self, phase: str, dataset: Any) -> None:
        """The loader of a phase is made."""
        self._facts[phase] = dataset, Facts.of(dataset)

    def closes(self, phase: str, epoch: str) -> str | None:
        if phase not in self._facts:
            return None
        dataset, facts = self._facts[phase]
        changed = facts.changed(dataset)
        return changed and f"{phase}: {changed}"


class _Single(ByStep):
    """The dataset of a loader, for a reader that asks for single samples and receives their hashes."""

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]
        randomness.reseed(index)  # so that what is drawn is equal on all ranks
        hashes = [0] * _HASHES
        for number, leaf in enumerate(_leaves(self._fetched([index]))):
            hashes[number % _HASHES] = zlib.crc32(_content(leaf), hashes[number % _HASHES])
        return hashes


@randomness.kept()
def read(loader: data.DataLoader[Any]) -> list[Sample]:
    """Return a few samples of a map-style dataset, none if they cannot be read.

    They are read where the loop will read them, in a worker if the loader has workers: this opens no file in a process
    that would not open it anyway. A leaf of a sample counts if two reads of it are equal.
    """
    source = loader.dataset
    if not isinstance(source, ByStep) or not source.n:
        return []
    places, drawn = range(source.n), random.Random(source.n)  # the same on all ranks
    sizes = Facts.of(source.dataset).sizes
    if sizes is not None and len(sizes):  # in one shard file, as a read of each file can fetch it
        file = drawn.randrange(len(sizes))
        places = range(int(sizes[:file].sum()), int(sizes[: file + 1].sum()))
    few = drawn.sample(places, min(_FEW, len(places)))
    workers = min(1, loader.num_workers)
    until = time.monotonic() + _SECONDS
    try:
        reads = data.DataLoader(
            _Single(source.dataset, source.n, source.collater.collate),
            batch_size=None,
            sampler=[*few, *reversed(few)],
            num_workers=workers,
            timeout=workers * _SECONDS,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator(),  # which the workers' seeds are drawn from
        )
        found = [*takewhile(lambda _: time.monotonic() < until, reads)]
    except Exception:  # of the dataset, which the loop may never ask for these samples, or not in this way
        return []
    twice = zip(reversed(few), found[len(few) - 1 :: -1], found[len(few) :], strict=False)
    samples = [(index, [one * (one == other) for one, other in zip(*both, strict=True)]) for index, *both in twice]
    return [each for each in samples if any(each[1])]


def saved(told: tuple[int, list[Sample]]) -> Saved:
    """Return for a state what rank 0 has told."""
    alike, samples = told
    return ((alike,), *((index, *hashes) for index, hashes in samples))


def differ(all_ranks: list[dict[str, Any]], before: Saved = ()) -> str | None:
    """Return a sentence on the first rank whose samples differ from those of another rank, or of a loaded state."""
    firsts: dict[int, tuple[str, dict[int, list[int]]]] = {}
    if before:
        (alike,), *samples = before
        firsts[alike] = "the loaded state", {index: hashes for index, *hashes in samples}
    for rank, each in enumerate(all_ranks):
        alike, samples = each["facts"]["_contents"]
        if not samples:
            continue
        name = f"rank {rank} ({each['pod']})"
        first, known = firsts.setdefault(alike, (name, dict(samples)))
        if wrong := sorted(index for index, own in samples if _differ(own, known.get(index, []))):
            return (
                f"{each['facts']['phase']}: the data of {name} differs from that of {first} at the indices "
                f"{', '.join(map(str, wrong))}: let all ranks load the same files in the same order, and leave the "
                "shuffle to torchtally or give it the same seed on all ranks"
            )
    return None


def _differ(own: list[int], other: list[int]) -> bool:
    return any(one and two and one != two for one, two in zip(own, other, strict=False))


def _leaves(sample: Any) -> Iterator[Any]:
    """What is in a sample, in its order: an image can be another one in each read, while its label stays."""
    if not (inner := parts(sample)):
        yield sample
    for each in inner.values():
        yield from _leaves(each)


def _content(leaf: Any) -> bytes:
    """What must be equal on all ranks; nothing for a leaf of another kind, which can contain addresses in memory."""
    if isinstance(leaf, Tensor):
        return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(leaf, str | os.PathLike):
        return os.fspath(leaf).rpartition("/")[2].encode()  # each pod can have a folder of its own
    if isinstance(leaf, bytes | bytearray):
        return bytes(leaf)
    if isinstance(leaf, bool | int | float | complex):
        return repr(leaf).encode()
    # NumPy's arrays, and images of PIL.
    in_memory = getattr(getattr(leaf, "dtype", None), "hasobject", False)
    return leaf.tobytes() if hasattr(leaf, "tobytes") and not in_memory else b""
