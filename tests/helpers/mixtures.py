"""The phases of scripts/mixed_counted.py, whose samples say which row of a parameter counts them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchtally import Batch, Mixture, Packed

ROWS = 203
SIZES = {"few": 50, "many": 200, "tiny": 8}
WEIGHTS = {"few": 0.7, "many": 0.2, "tiny": 0.1}
PACKED_ROW = 16
DROPPING = 61  # the number of samples, of which every third is dropped
LENGTHS = [random.Random(5).randrange(0, 40) for _ in range(61)]


class Numbers(Dataset[int]):
    """Samples that are their own index, from `first` on."""

    def __init__(self, n: int, first: int = 0):
        self.n, self.first = n, first

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return self.first + index


class Texts(Dataset[list[int]]):
    """Documents, each token of which is its number among all tokens."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> list[int]:
        first = sum(LENGTHS[:index])
        return [*range(first, first + LENGTHS[index])]


def mixture() -> Mixture:
    firsts = {"few": 0, "many": 50, "tiny": 250}
    return Mixture({name: Numbers(n, firsts[name]) for name, n in SIZES.items()}, WEIGHTS, length=ROWS, seed=3)


def packed() -> Packed:
    return Packed(Texts(), LENGTHS, PACKED_ROW, padding=sum(LENGTHS))


def dropping(samples: Any) -> Batch:
    dropped = {index: f"{index % 2} modulo 2" for index in samples.indices if index % 3 == 0}
    kept = [index for index in samples.indices if index not in dropped]
    return Batch(kept, torch.tensor(kept) if kept else None, dropped=dropped)  # type: ignore[arg-type]


@dataclass
class Phase:
    epochs: int
    dataset: Callable[[], Any]
    counted: int
    options: dict[str, Any] = field(default_factory=dict)


PHASES = {
    "mixture": Phase(1, mixture, sum(SIZES.values()), {"shuffle": False}),
    "dropping": Phase(2, lambda: Numbers(DROPPING), DROPPING, {"collate_fn": dropping}),
    "packed": Phase(2, packed, sum(LENGTHS) + 1),
}


def of_phase(name: str, data: Any) -> Tensor:
    """The rows that count a batch."""
    return torch.as_tensor(data["input_ids"].flatten() if name == "packed" else data, dtype=torch.int64)
