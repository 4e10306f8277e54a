"""The orders and shards of an epoch, against an enumeration that shares nothing with them."""

from typing import Any, Literal

import bruteforce
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.proof import digest, permutation
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.order import Order
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.shards import Shard

G = digest.base("run")
seeds = st.integers(0, 2**63 - 1)
numbers = st.integers(1, 60)


@st.composite
def listed(draw: st.DrawFn) -> tuple[int, Order]:
    """Any order, of so few samples that it can be listed."""
    plain: list[Literal["feistel-1", "sequential"]] = ["feistel-1", "sequential"]
    if draw(st.booleans()):
        return draw(st.integers(1, 400)), draw(st.sampled_from(plain))
    sizes = ShardSizes.of(draw(st.lists(st.integers(0, 40), min_size=1, max_size=14).filter(any)))
    return sizes.total, LocalOrder(draw(st.integers(1, 6)), draw(st.integers(1, 9) | st.just(500)), sizes)


@st.composite
def huge(draw: st.DrawFn) -> tuple[int, Order]:
    if draw(st.booleans()):
        return draw(st.integers(1 << 32, (1 << 63) - 1)), "feistel-1"
    sizes = ShardSizes.of(draw(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=50).filter(any)))
    return sizes.total, LocalOrder(draw(numbers), draw(numbers), sizes)


@given(listed(), seeds, st.integers(0, 10**6), st.data())
def test_an_order_is_a_permutation_and_has_an_inverse(
    order: tuple[int, Order], seed: int, epoch: int, data: st.DataObject
) -> None:
    n = order[0]
    whole = Shard(n=n, rank=0, world=1, order=order[1], seed=seed, epoch=epoch)
    samples = whole.samples_at(np.arange(n))
    assert sorted(samples.tolist()) == [*range(n)]
    assert whole.positions_of(samples).tolist() == [*range(n)]
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=30)), dtype=np.int64)
    assert np.array_equal(whole.samples_at(some), samples[some])


@given(huge(), seeds, st.data())
def test_an_order_has_an_inverse_where_it_cannot_be_listed(
    order: tuple[int, Order], seed: int, data: st.DataObject
) -> None:
    n = order[0]
    whole = Shard(n=n, rank=0, world=1, order=order[1], seed=seed)
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    samples = whole.samples_at(positions)
    assert ((samples >= 0) & (samples < n)).all()
    assert np.array_equal(whole.positions_of(samples), positions)


@given(listed(), st.integers(1, 17), st.sampled_from(CONTRACTS), st.data())
def test_the_ranks_share_the_samples_as_each_contract_says(
    order: tuple[int, Order], world: int, contract: Contract, data: st.DataObject
) -> None:
    n = order[0]
    start = data.draw(st.integers(0, n - 1))
    end = data.draw(st.none() if n < 2 else st.integers(max(1, start), n - 1) | st.none())
    common: dict[str, Any] = {"n": n, "world": world, "order": order[1], "seed": 4, "epoch": 2}
    shards = [Shard(rank=rank, contract=contract, start=start, end=end, **common) for rank in range(world)]
    epoch = shards[0].samples_at(np.arange(n)).tolist()
    dealt = bruteforce.deal(epoch[:end], world, contract if end is None else "exact", start)
    places = {sample: position for position, sample in enumerate(epoch)}
    batch = data.draw(st.integers(1, 50))
    for shard, own in zip(shards, dealt, strict=True):
        assert [*map(places.get, own)] == shard.positions().tolist()
        assert shard.indices().tolist() == own
        batches = [shard.indices(at, at + batch) for at in range(0, len(own) + batch, batch)]
        assert [sample for some in batches for sample in some.tolist()] == own
        parts = [range(part.first, part.first + part.stride * part.count, part.stride) for part in shard.progressions]
        assert [position for part in parts for position in part] == shard.positions().tolist()
        assert (shard.size, shard.total) == (len(own), sum(map(len, dealt)))
        assert shard.steps(batch) == len(range(0, shard.total, batch))
    every = [*epoch[:start], *(sample for own in dealt for sample in own)]
    whole = [range(lap.count) for lap, times in shards[0].everything.items() for _ in range(times)]
    assert sorted(position for lap in whole for position in lap) == sorted(map(places.__getitem__, every))
    assert [*digest.of_all_ranks(shards[0], G).words] == bruteforce.words(every, places, "run")


# The order is part of what a tally line promises: a change to any of these needs another name than feistel-1.
@pytest.mark.parametrize(
    ("n", "seed", "epoch", "expected"),
    [
        (7, 0, 1, [1, 5, 3, 6, 0, 2, 4]),
        (60000, 0, 1, [25703, 47454, 22126, 13687, 28645, 1385, 16424]),
        (60000, 1, 2, [5035, 28291, 14669, 50447, 928, 27098, 32118]),
        (
            10**12,
            2**63 - 1,
            3,
            [15999221852, 242412404007, 941898023350, 772105659364, 298792388506, 695383384212, 348183961442],
        ),
        (
            2**63 - 1,
            5,
            10**6,
            [
                2397110728987807458,
                5367633949127705725,
                7172789416127385755,
                7911874865943760762,
                21318203995485737,
                5271755157430642739,
                7046671640742747842,
            ],
        ),
    ],
)
def test_the_order_is_frozen(n: int, seed: int, epoch: int, expected: list[int]) -> None:
    assert permutation.permute(np.arange(7), n, seed, epoch).tolist() == expected


@pytest.mark.parametrize("n", [5, 37, 250])
def test_the_order_is_as_random_as_a_shuffle(n: int) -> None:
    """Chi-square of where samples go, and of the distance of neighbours, over fixed seeds, within 4 sigma."""
    rounds = 500
    places, neighbours = np.zeros((n, n)), np.zeros(n)
    for seed in range(rounds):
        one = permutation.permute(np.arange(n), n, seed, 1)
        places[np.arange(n), one] += 1
        neighbours += np.bincount((one[1:] - one[:-1]) % n, minlength=n)
    assert _sigmas(places, rounds / n, (n - 1) ** 2) < 4
    assert _sigmas(neighbours[1:], rounds, n - 2) < 4


def _sigmas(counts: np.ndarray, expected: float, freedom: int) -> float:
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))
