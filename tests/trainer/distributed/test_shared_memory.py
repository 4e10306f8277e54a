"""Gradients summed in shared memory are gloo's, to the bit; and a rank that goes away is missed at once."""

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from torchtally.accounting.batches.step_loader import Taken
from torchtally.distributed.shared_memory import SharedGradients, connect
from torchtally.errors import Lost
from torchtally.options import Training
from torchtally.training.steps import Steps

# Less than a rank each, more than a segment of gloo's for each, and back again.
LENGTHS = [1, 3, 97, 100_001, 2_100_001, 1000]


def _connected(rank: int, world: int, store: Store) -> SharedGradients:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    memory = connect(world)
    assert memory
    return memory


def _parameters(length: int, dtype: torch.dtype) -> list[nn.Parameter]:
    """So many numbers, in two if they can be: gloo sees one buffer."""
    sizes = [length // 3, length - length // 3] if length > 1 else [length]
    return [nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes]


def _differences(rank: int, world: int, store: Store, steps: int) -> list[tuple[int, int, torch.dtype]]:
    memory = _connected(rank, world, store)
    buckets = [_parameters(length, dtype) for length in LENGTHS for dtype in (torch.float32, torch.float64)]
    memory.allocate(buckets)
    torch.manual_seed(rank)
    came_out = []
    for _ in range(steps):  # in a row: nothing but the sums themselves keeps the ranks together
        for each in _drawn(buckets):
            each.grad = torch.randn_like(each)
        memory.average()
        came_out.append([_hashed(torch.cat([_gradient(each) for each in bucket])) for bucket in buckets])
    torch.manual_seed(rank)  # the same numbers once more: to keep them would take a gigabyte a rank
    found = []
    for step, means in enumerate(came_out):
        for each in _drawn(buckets):
            each.grad = torch.randn_like(each)
        for mean, bucket in zip(means, buckets, strict=True):
            buffer = torch.cat([_gradient(each) for each in bucket]) * (1 / world)
            dist.all_reduce(buffer)
            if mean != _hashed(buffer):
                found.append((step, len(buffer), buffer.dtype))
    return found


def _drawn(buckets: list[list[nn.Parameter]]) -> list[nn.Parameter]:
    return [each for bucket in buckets for each in bucket]


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _hashed(values: Tensor) -> str:
    return hashlib.sha256(values.view(torch.uint8).numpy()).hexdigest()


@pytest.mark.parametrize("steps", [4, pytest.param(20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("world", [3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 5, 8))])
def test_the_mean_is_the_one_that_gloo_makes_to_the_bit(world: int, steps: int) -> None:
    assert ranks.run(world, _differences, steps) == [[]] * world


class _Centred(nn.Module):
    """What it gives out depends on what it has seen, on rank 0 by DDP's word."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(rows.detach().mean(0), 0.1)
        return rows - self.mean


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _with_buffers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), _Centred(), nn.ReLU(), nn.Linear(8, 2))


class _Followed(nn.Module):
    """Its running statistics are parameters without gradient, as Keras' are: their mean over all ranks counts."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.deviation = (nn.Parameter(torch.ones(size), requires_grad=False) for size in (8, 1))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(rows.detach().mean(0), 0.1)
            self.deviation.lerp_(rows.detach().square().mean().view(1), 0.1)
        return (rows - self.mean) / self.deviation.sqrt()


def _with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), _Followed(), nn.ReLU(), nn.Linear(8, 2))


def _channels_last() -> nn.Module:
    """Its weights are not in memory in the order of their dimensions; nor are they in DDP's buckets."""
    convolutions = nn.Conv2d(2, 100, kernel_size=1), nn.Conv2d(100, 2, kernel_size=(2, 1))
    model = nn.Sequential(nn.Unflatten(1, (2, 2, 1)), *convolutions, nn.Flatten())
    return model.to(memory_format=torch.channels_last)


MODELS = [_linear, _with_buffers, _with_statistics, _channels_last]


def _weights(rank: int, world: int, store: Store) -> list[tuple[Any, Any]]:
    """Of each model, those that a training by shared memory ends with, and those of one by gloo."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    options, found = Training(epochs=2, batch_size=8, lr=0.3, seed=5), []
    for model in MODELS:
        task = replace(toy.task(), model=lambda _, model=model: model())
        memories = (connect(world), None)
        each = [toy.fit(rank, world, store, options, 203, 31, toy=task, memory=memory) for memory in memories]
        found.append((each[0]["weights"], each[1]["weights"]))
    return found


def test_a_training_ends_with_the_same_weights_as_by_gloo(subtests: pytest.Subtests) -> None:
    for of_rank in ranks.run(3, _weights):
        for model, (here, there) in zip(MODELS, of_rank, strict=True):
            with subtests.test(model.__name__):
                assert here == there


def _trains(rank: int, world: int, store: Store, leaves: int) -> str:
    def ends_early(steps: Steps) -> Iterator[Taken]:
        for step, batch in enumerate(whole(steps)):
            if rank == leaves and step == 3:
                raise KeyboardInterrupt
            yield batch

    whole = Steps.__iter__
    memory = _connected(rank, world, store)
    options = Training(epochs=1, batch_size=8, lr=0.3, seed=5)
    with pytest.raises((Lost, KeyboardInterrupt)) as ended, patch.object(Steps, "__iter__", ends_early):
        toy.fit(rank, world, store, options, 203, 31, memory=memory)
    return repr(ended.value)


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_goes_away_is_named_to_the_other_whose_training_ends(leaves: int) -> None:
    found = ranks.run(2, _trains, leaves)
    assert found[1 - leaves] == f"Lost('rank {leaves} ({socket.gethostname()}) failed: KeyboardInterrupt: ')"
    assert found[leaves] == "KeyboardInterrupt()"


def _elsewhere(rank: int, world: int, store: Store) -> bool:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return connect(local_world=1) is None


def test_ranks_in_several_pods_share_no_memory() -> None:
    assert ranks.run(2, _elsewhere) == [True, True]
