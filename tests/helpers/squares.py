"""Data whose samples tell their index, and the steps in which an account hands them out."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from torchtally.proof import permutation
from torchtally.proof.contract import Contract
from torchtally.proof.order import Order

N, SIZE = 49, 8  # over 2 and 3 ranks the last step has one sample, and the others none
KEPT = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}  # of a loader


class Squares(Dataset[dict[str, Any]]):
    fingerprint = "squares"

    def __init__(self, n: int = N):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index), 1.0]), "square": index**2}


class NoStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Selecting(NoStream):
    """Its `select` is another: that of WebDataset, which takes a predicate."""

    def __len__(self) -> int:
        return N

    def select(self, predicate: Callable[[int], bool]) -> Iterator[int]:
        return filter(predicate, self)


class Pairs(Squares):
    def __getitem__(self, index: int) -> Any:
        return index, index**2


def expected(rank: int, world: int, epoch: int, contract: Contract, order: Order) -> list[list[int]]:
    """The indices of each step, by the definition of a contract: the order is cut by position."""
    total = {"exact": N, "padded": -(-N // world) * world, "drop_last": N // world * world}[contract]
    indices = np.arange(total) % N  # positions
    if order == "feistel-1":
        indices = permutation.permute(indices, N, 7, epoch)
    batch = SIZE * world
    return [indices[step : step + batch][rank::world].tolist() for step in range(0, total, batch)]
