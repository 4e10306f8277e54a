"""The steps of a rank are the order cut by position, whatever divides or not."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.accounting.order import schedule
from torchtally.accounting.order.schedule import Schedule
from torchtally.proof import permutation
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.order import Order
from torchtally.proof.shards import Shard


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """So that a few samples are several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "_CHUNK", 5)
        yield


@given(
    n=st.integers(1, 60),
    world=st.integers(1, 5),
    batch=st.integers(1, 30),
    contract=st.sampled_from(CONTRACTS),
    order=st.sampled_from(["feistel-1", "sequential"]),
    data=st.data(),
)
def test_the_steps_of_all_ranks_are_the_order_cut_by_position(
    n: int, world: int, batch: int, contract: Contract, order: Order, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n))
    left = n - start
    total = {"exact": left, "padded": -(-left // world) * world, "drop_last": left // world * world}[contract]
    samples = (start + np.arange(total)) % n
    if order == "feistel-1":
        samples = permutation.permute(samples, n, 3, 2)
    steps = -(-total // batch)
    skip = data.draw(st.integers(0, steps))
    for rank in range(world):
        shard = Shard(n=n, rank=rank, world=world, contract=contract, order=order, seed=3, epoch=2, start=start)
        found = Schedule(shard, batch, skip)
        ours = [
            [int(samples[at]) for at in range(step * batch, min((step + 1) * batch, total)) if at % world == rank]
            for step in range(skip, steps)
        ]
        assert [each.tolist() for each in found.arrays()] == ours
        edges = [min(step * batch, total) for step in range(skip, steps + 1)]
        planned = [(step.indices.tolist(), step.rows, step.position) for step in found.left()]
        begins = range(start + skip * batch, start + steps * batch, batch)
        assert planned == [*zip(ours, np.diff(edges), begins, strict=True)]
        assert (found.steps, found.total) == (steps, total)
        assert found.begin(skip) == sum(at % world == rank for at in range(skip * batch))


@given(
    n=st.integers(1, 60),
    world=st.integers(1, 5),
    own=st.integers(1, 6),
    contract=st.sampled_from(CONTRACTS),
    data=st.data(),
)
def test_a_shared_last_step_has_a_sample_of_each_rank_where_there_are_as_many(
    n: int, world: int, own: int, contract: Contract, data: st.DataObject
) -> None:
    reached = None
    for rank in range(world):
        shard = Shard(n=n, rank=rank, world=world, contract=contract)
        usual, found = Schedule(shard, own * world), Schedule(shard, own * world, shared=True)
        skip = data.draw(st.integers(0, found.steps))
        steps = [each.tolist() for each in found.arrays()]
        assert [index for step in steps for index in step] == shard.indices().tolist()
        rows = [step.rows for step in found.left()]
        assert [0, *accumulate(rows)] == [found.reached(step) for step in range(found.steps + 1)]
        assert [each.tolist() for each in Schedule(shard, own * world, skip, shared=True).arrays()] == steps[skip:]
        assert found.steps == usual.steps == len(steps)
        assert all(len(step) <= own for step in steps)
        if own > 1 and n >= world:
            assert all(steps)
        else:
            assert steps == [each.tolist() for each in usual.arrays()]
        sums = np.cumsum([0, *map(len, steps)])
        reached = sums if reached is None else reached + sums
    assert reached is not None
    assert [found.reached(step) for step in range(found.steps + 1)] == reached.tolist()
