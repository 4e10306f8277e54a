"""Gradients summed in shared memory are gloo's, to the bit; and a rank that goes away is missed at once."""

from collections.abc import Iterator
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from torchtally import loop
from torchtally.all_reduce import Shared, shared
from torchtally.errors import Lost
from torchtally.options import Training
from torchtally.tally import Phase, Run

# Less than a rank each, more than a segment of gloo's for each, and back again.
LENGTHS = [1, 3, 97, 100_001, 2_100_001, 1000, *[50_001, 20_001] * 20]


def _meet(rank: int, world: int, store: Store) -> Shared:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    memory = shared(world)
    assert memory
    return memory


def _differences(rank: int, world: int, store: Store) -> list[tuple[int, torch.dtype]]:
    memory = _meet(rank, world, store)
    torch.manual_seed(rank)
    here = [torch.randn(length, dtype=dtype) for length in LENGTHS for dtype in (torch.float32, torch.float64)]
    there = [each * (1 / world) for each in here]
    for each in here:  # in a row: nothing but the sums themselves keeps the ranks together
        memory.mean(each)
    for each in there:
        dist.all_reduce(each)
    return [(len(a), a.dtype) for a, b in zip(here, there, strict=True) if not torch.equal(a, b)]


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_the_mean_is_the_one_that_gloo_makes_to_the_bit(world: int) -> None:
    assert ranks.run(world, _differences) == [[]] * world


def _weights(rank: int, world: int, store: Store, together: bool) -> Any:
    memory = _meet(rank, world, store)
    options = Training(epochs=2, batch_size=8, lr=0.3, seed=5)
    return toy.fit(rank, world, store, options, 203, 31, memory=memory if together else None)["weights"]


def test_a_training_ends_with_the_same_weights_as_by_gloo() -> None:
    here, there = (ranks.run(3, _weights, together)[0] for together in (True, False))
    assert here == there


def _left(rank: int, world: int, store: Store, leaves: int) -> str | None:
    memory = _meet(rank, world, store)
    memory.mean(torch.ones(10))
    if rank != leaves:
        with pytest.raises(Lost) as lost:
            memory.mean(torch.ones(10))
        return str(lost.value)
    return None  # and with this its end of the connection is closed


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_goes_away_is_named_to_the_other(leaves: int) -> None:
    assert ranks.run(2, _left, leaves)[1 - leaves] == f"rank {leaves} of this pod went away"


def _ends_early(run: Run, phase: Phase) -> Iterator[Tensor]:
    for step, batch in enumerate(loop.batches(run, phase)):
        if run.rank == 1 and step == 3:
            raise KeyboardInterrupt
        yield batch


def _trains(rank: int, world: int, store: Store) -> str:
    memory = _meet(rank, world, store)
    options = Training(epochs=1, batch_size=8, lr=0.3, seed=5)
    with pytest.raises((Lost, KeyboardInterrupt)) as ended:
        toy.fit(rank, world, store, options, 203, 31, batches=_ends_early, memory=memory)
    return repr(ended.value)


def test_a_training_ends_with_that_name() -> None:
    assert ranks.run(2, _trains) == ["Lost('rank 1 of this pod went away')", "KeyboardInterrupt()"]


def _elsewhere(rank: int, world: int, store: Store) -> bool:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return shared(local_world=1) is None


def test_ranks_in_several_pods_share_no_memory() -> None:
    assert ranks.run(2, _elsewhere) == [True, True]
