"""Orders for data in shard files: how many files a rank reads, and how well samples are shuffled. A Markdown table.

locality [--samples]    the latter for `make bench`

Each rank is a node of its own that keeps a file from its first sample to its last. Nothing is read: all follows from
the sizes of the files. Streaming's blocks have as many samples as a window of 8 files.

Measures of shuffling, each 1 for torch.randperm:
- distance: mean number of steps between samples that are neighbors in their file (after Spearman's footrule, which
  Diaconis and Graham describe: "Spearman's footrule as a measure of disarray", J. R. Stat. Soc. B 39, 1977);
- files: mean number of files in the batch of all ranks;
- entropy: of the differences between the files of neighbors in a rank's order, as in Streaming's Simulator.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from functools import partial
from importlib.metadata import version
from platform import python_version

import numpy as np
import torch

from bench.machine import describe
from bench.markdown import markdown, number
from bench.measure import sampler
from bench.sample import Better, emit
from torchtally.proof import permutation
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.permutation import Indices
from torchtally.proof.shard_sizes import ShardSizes

WORLD, BATCH, BLOCK = 8, 32, 8  # a block: files
_FILES, _SMALLEST, _LARGEST = 1000, 512, 1536  # samples of a file, evenly distributed
_SEEDS = 3
SIZES = np.random.default_rng(0).integers(_SMALLEST, _LARGEST, _FILES, endpoint=True)
SIZES[-1] += -SIZES.sum() % (WORLD * BATCH)
N = int(SIZES.sum())
_FILE_OF = np.repeat(np.arange(_FILES), SIZES)

Ranks = Indices  # (ranks, steps, batch): the samples of each rank in each step


@dataclass(frozen=True)
class Found:
    """What is measured of an order."""

    open: float  # files of a rank at a time, at most
    read: float  # how often a file is read, by all ranks together
    distance: float
    files: float
    entropy: float


UNITS = {
    "open": "files open at a time on a rank, at most",
    "read": "times a sample is read, by all ranks together",
    "distance": "distance",
    "files": "files in a batch",
    "entropy": "entropy",
}


def in_turn(order: Indices) -> Ranks:
    """Rank r takes the positions r, r + world, r + 2 world, ... of the order."""
    return order.reshape(-1, BATCH, WORLD).transpose(2, 0, 1)


def in_parts(order: Indices) -> Ranks:
    """Rank r takes part r of the order, as Streaming partitions it over nodes."""
    return order.reshape(WORLD, -1, BATCH)


def randperm(seed: int) -> Ranks:
    return in_turn(torch.randperm(N, generator=torch.Generator().manual_seed(seed)).numpy())


def feistel(seed: int) -> Ranks:
    return in_turn(permutation.permute(np.arange(N), N, seed, 1))


def local(window: int, lanes: int, seed: int) -> Ranks:
    return in_turn(LocalOrder(window, lanes, ShardSizes.of(SIZES.tolist())).samples_at(np.arange(N), seed, 1))


def streaming(name: str, seed: int) -> Ranks:
    sampler.find_streaming()
    from streaming.base import shuffle

    return in_parts(shuffle.get_shuffle(name, SIZES, WORLD, seed, 1, BLOCK * N // _FILES))


ORDERS: dict[str, Callable[[int], Ranks]] = {
    "torch.randperm": randperm,
    "feistel-1": feistel,
    "locality-1, window 8, 1 lane": partial(local, 8, 1),
    "locality-1, window 8, 8 lanes": partial(local, 8, WORLD),
    "locality-1, window 32, 8 lanes": partial(local, 32, WORLD),
    "Streaming py1s": partial(streaming, "py1s"),
    "Streaming py2s": partial(streaming, "py2s"),
    "Streaming py1br": partial(streaming, "py1br"),
    "Streaming py1e": partial(streaming, "py1e"),
}


def found(ranks: Ranks) -> Found:
    """The measures of an order, not yet relative to another's."""
    of_ranks = [_FILE_OF[own.ravel()] for own in ranks]
    steps = np.empty(N, dtype=np.int64)
    steps[ranks.ravel()] = np.broadcast_to(np.arange(ranks.shape[1])[:, None], ranks.shape).ravel()
    same_file = _FILE_OF[1:] == _FILE_OF[:-1]
    batches = np.sort(_FILE_OF[ranks].transpose(1, 0, 2).reshape(ranks.shape[1], -1), axis=1)
    return Found(
        open=max(map(_most_open, of_ranks)),
        read=sum(int(SIZES[np.unique(files)].sum()) for files in of_ranks) / N,
        distance=float(np.abs(np.diff(steps))[same_file].mean()),
        files=float((np.diff(batches, axis=1) > 0).sum(axis=1).mean() + 1),
        entropy=float(np.mean([_entropy(files) for files in of_ranks])),
    )


def _most_open(files: Indices) -> int:
    different, first = np.unique(files, return_index=True)
    _, from_the_end = np.unique(files[::-1], return_index=True)
    change = np.zeros(len(files) + 1, dtype=np.int64)
    change[first] += 1
    np.add.at(change, len(files) - from_the_end, -1)  # behind its last sample
    assert len(different) == len(first)
    return int(change.cumsum().max())


def _entropy(files: Indices) -> float:
    _, counts = np.unique(np.abs(np.diff(files)), return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum())


def measured() -> Iterator[tuple[str, Found]]:
    """The name of each order and its measures: means over seeds, those of shuffling relative to torch.randperm's."""
    best = None
    for name, order in ORDERS.items():
        means = np.mean([astuple(found(order(seed))) for seed in range(_SEEDS)], axis=0)
        best = means if best is None else best
        yield name, Found(*means[:2], *(means / best)[2:])


def table() -> Iterator[str]:
    """The lines of the table."""
    rows = [[name, *(number(value) for value in astuple(each))] for name, each in measured()]
    yield from markdown(["order", *UNITS.values()], rows)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "mosaicml-streaming"))
    yield ""
    yield (
        f"Computed from the sizes of {_FILES} files with {_SMALLEST} to {_LARGEST} samples each, {N:,} together, "
        f"for {WORLD} ranks with {BATCH} samples a step; means of n = {_SEEDS} seeds. {describe()['processor']}; "
        f"python {python_version()}, {packages}."
    )


def main() -> None:
    if "--samples" not in sys.argv:
        for line in table():
            print(line, flush=True)
        return
    for name, each in measured():
        for field in fields(each):
            better: Better = "lower" if field.name in ("open", "read") else "higher"
            emit(f"order, {UNITS[field.name]}", getattr(each, field.name), "", better, order=name)


if __name__ == "__main__":
    main()
