"""Samples per second of a loop that does nothing: an account's loader beside a DataLoader with DistributedSampler.

python -m bench.measure.loading    prints a table of all cases
loading WORKERS PAIRS              measures, as a part of `make bench`

The loader whose samples are proved and the one whose samples are not take their epochs in turn, each first in half of
the pairs. A ratio compares the two epochs of a pair: by the clock, and by the CPU time of the process and its workers,
which other programs on the machine disturb less.
"""

import itertools
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bench import machine
from bench.markdown import markdown, shown
from bench.sample import emit, found_in
from bench.spread import spread
from torchtally import Account, each_row

WORKERS = (0, 2)
BATCHES = (32, 256)
_WALL, _CPU = "loading, of an untallied DataLoader", "loading, of an untallied DataLoader, by CPU time"
_PAIRS = 10
_SECONDS = 0.2  # an epoch, about: its proof takes a few milliseconds
_STEP = {0: 50e-6, 2: 500e-6}  # seconds of a step, about, by workers
_IMAGE = 5e-6  # more for each image


class OneByOne(Dataset[int]):
    """A dataset that costs nothing."""

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class AtOnce(OneByOne):
    """The same, which fetches a batch at once."""

    def __init__(self, n: int):
        super().__init__(n)
        self.values = torch.arange(n)

    def __getitems__(self, indices: list[int]) -> Any:
        return self.values[indices]


class Images(OneByOne):
    """Images of the size of MNIST's, in memory: about the least that a dataset costs."""

    pixels = torch.arange(1000 * 28 * 28).to(torch.uint8).view(1000, 28, 28)

    def __getitem__(self, index: int) -> Any:
        return self.pixels[index % 1000].float() / 255


def same(batch: Any) -> Any:
    return batch


FETCHED: dict[str, tuple[type[OneByOne], Any]] = {
    "one by one": (OneByOne, None),
    "at once": (AtOnce, same),
    "images": (Images, None),
}


class Took(NamedTuple):
    """Seconds of an epoch."""

    wall: float
    cpu: float  # of this process and its workers


def main() -> None:
    if len(sys.argv) > 1:
        measure(*map(int, sys.argv[1:]))
    else:
        print("\n".join(table()))


def measure(workers: int, pairs: int) -> None:
    torch.set_num_threads(1)
    for fetched, batch in itertools.product(FETCHED, BATCHES):
        case: dict[str, str | int] = {"workers": workers, "batch": batch, "fetched": fetched}
        steps = round(_SECONDS / (_STEP[workers] + (fetched == "images") * batch * _IMAGE))
        took = _took(workers, batch, steps, pairs, *FETCHED[fetched])
        for tool, each in took.items():
            speed = steps * batch / median(seconds.wall for seconds in each)
            emit("loading", speed, "samples/s", "higher", tool=tool, **case)
        for plain, ours in zip(took["torch"], took["torchtally"], strict=True):
            emit(_WALL, 100 * plain.wall / ours.wall, "%", "higher", **case)
            emit(_CPU, 100 * plain.cpu / ours.cpu, "%", "higher", **case)


def _took(
    workers: int, batch: int, steps: int, pairs: int, kind: type[OneByOne], collate: Any
) -> dict[str, list[Took]]:
    """What the epochs of each loader took, after one that starts the workers."""
    dataset = kind(steps * batch)
    options: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "persistent_workers": workers > 0}
    sampler: DistributedSampler[int] = DistributedSampler(dataset, 1, 0)
    plain = DataLoader(dataset, sampler=sampler, collate_fn=collate, **options)

    def untallied(epoch: int) -> Iterable[Any]:
        sampler.set_epoch(epoch)
        return plain

    with Account(task="bench", plan={"train": 1 + pairs}) as account:
        loader = account.loader(dataset, "train", collate_fn=collate and each_row(collate), trains=False, **options)
        tools: dict[str, Callable[[int], Iterable[Any]]] = {"torch": untallied, "torchtally": lambda _: loader}
        took: dict[str, list[Took]] = {tool: [] for tool in tools}
        for epoch in range(1, 2 + pairs):
            for tool in list(tools)[:: -1 if epoch % 2 else 1]:
                took[tool].append(_epoch(tools[tool], epoch))
    return {tool: each[1:] for tool, each in took.items()}


def _epoch(batches: Callable[[int], Iterable[Any]], epoch: int) -> Took:
    wall, cpu = time.perf_counter(), _cpu_seconds()
    for _ in batches(epoch):
        pass
    return Took(time.perf_counter() - wall, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """The CPU time of this process and of its children, which live on: exactly, by the scheduler's own counts."""
    tasks = (task for child in psutil.Process().children() for task in Path(f"/proc/{child.pid}/task").iterdir())
    return time.process_time() + sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def table() -> Iterator[str]:
    found: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for workers in WORKERS:
        command = [sys.executable, "-m", "bench.measure.loading", str(workers), str(_PAIRS)]
        for sample in found_in(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout):
            case = tuple(str(sample.case[name]) for name in ("workers", "fetched", "batch"))
            found[case][f"{sample.measure} {sample.case.get('tool', '')}".strip()].append(sample.value)
    measures = ["loading torch", "loading torchtally", _WALL, _CPU]
    header = ["workers", "fetched", "batch", "untallied, samples/s", "tallied, samples/s", "ratio, %", "by CPU time, %"]
    rows = [[*case, *(shown(spread(values[name])) for name in measures)] for case, values in found.items()]
    yield from markdown(header, rows, left=(1,))
    yield ""
    about = machine.sentence("torch", "numpy")
    yield f"Medians of {_PAIRS} pairs of epochs, with the minimum and the maximum in brackets. {about}"


if __name__ == "__main__":
    main()
