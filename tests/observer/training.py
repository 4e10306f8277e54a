"""What programs of test_mistakes.py and others share: a small DDP training that knows nothing of torchtally."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader as DataLoader
from torch.utils.data import Dataset as Dataset
from torch.utils.data import DistributedSampler as DistributedSampler
from torch.utils.data import IterableDataset as IterableDataset
from torch.utils.data import Subset as Subset
from torch.utils.data import TensorDataset
from torch.utils.data import WeightedRandomSampler as WeightedRandomSampler
from torch.utils.data import random_split as random_split

N = int(os.environ.get("N", "1000"))
rank = world = 0


def setup() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def data(n: int = N, seed: int = 7) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 4, generator=generator), torch.randint(10, (n,), generator=generator))


def train(
    loader: Iterable[Any], epochs: int = 2, before: Callable[[int], None] = lambda epoch: None, test: Any = None
) -> None:
    """Train on batches of four numbers and a label, and evaluate `test` after each epoch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(epochs):
        before(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        if test is not None:
            with torch.no_grad():
                for inputs, _ in test:
                    model.module(inputs)
    dist.destroy_process_group()
