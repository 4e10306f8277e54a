"""Samples per second of a loop that does nothing: an account's loader beside a DataLoader with DistributedSampler.

loading WORKERS    e.g. 0

The loader whose samples are proved and the one whose samples are not take their epochs in turn. A ratio compares two
epochs that follow each other.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bench.sample import emit
from torchtally import Account, each_row

WORKERS = (0, 2)
BATCHES = (32, 256)
_EPOCHS = 6  # of each loader; the first starts the workers
_STEPS = {0: 8192, 2: 1024}  # of an epoch, by workers: its proof takes a few milliseconds, and these half a second


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


def same(batch: Any) -> Any:
    return batch


FETCHED: dict[str, tuple[type[OneByOne], Any]] = {"one by one": (OneByOne, None), "at once": (AtOnce, same)}


def main() -> None:
    workers = int(sys.argv[1])
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHTALLY_RUN": "bench",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    for fetched, batch in itertools.product(FETCHED, BATCHES):
        n = _STEPS[workers] * batch
        kind, collate = FETCHED[fetched]
        dataset = kind(n)
        options: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "persistent_workers": workers > 0}
        sampler: DistributedSampler[int] = DistributedSampler(dataset)
        plain = DataLoader(dataset, sampler=sampler, collate_fn=collate, **options)

        def untallied(epoch: int, sampler: Any = sampler, plain: Any = plain) -> Iterable[Any]:
            sampler.set_epoch(epoch)
            return plain  # type: ignore[no-any-return]

        with Account(task="bench", plan={"train": _EPOCHS}) as account:
            loader = account.loader("train", dataset, collate_fn=collate and each_row(collate), trains=False, **options)

            def tallied(epoch: int, account: Account = account, loader: Any = loader) -> Iterable[Any]:
                return account.epoch("train", epoch, loader)

            took: dict[str, list[float]] = {"torch": [], "torchtally": []}
            for epoch in range(1, _EPOCHS + 1):
                took["torch"].append(_seconds(untallied, epoch))
                took["torchtally"].append(_seconds(tallied, epoch))
        case: dict[str, str | int] = {"workers": workers, "batch": batch, "fetched": fetched}
        for tool, seconds in took.items():
            emit("loading", n / median(seconds[1:]), "samples/s", "higher", tool=tool, **case)
        ratios = [
            plain / ours for plain, ours in zip(*(took[tool][1:] for tool in ("torch", "torchtally")), strict=True)
        ]
        emit("loading, of an untallied DataLoader", 100 * median(ratios), "%", "higher", **case)


def _seconds(batches: Callable[[int], Iterable[Any]], epoch: int) -> float:
    began = time.perf_counter()
    for _ in batches(epoch):
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
