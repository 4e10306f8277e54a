"""The arithmetic of shards, against an enumeration that shares nothing with it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.proof import permutation
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.shards import Progression, Shard

small = st.integers(1, 400)
worlds = st.integers(1, 17)
seeds = st.integers(0, 2**63 - 1)


def everyone(n: int, world: int, contract: Contract) -> list[int]:
    return [int(p) for shard in all_ranks(n, world, contract) for p in shard.positions()]


def all_ranks(n: int, world: int, contract: Contract) -> list[Shard]:
    return [Shard(n=n, rank=rank, world=world, contract=contract) for rank in range(world)]


@given(n=small, world=worlds)
def test_exact_hands_out_every_position_once(n: int, world: int) -> None:
    assert sorted(everyone(n, world, "exact")) == list(range(n))


@given(n=small, world=worlds)
def test_padded_repeats_the_first_positions_only(n: int, world: int) -> None:
    extra = -n % world
    expected = Counter(range(n)) + Counter(position % n for position in range(extra))
    assert Counter(everyone(n, world, "padded")) == expected


@given(n=small, world=worlds)
def test_drop_last_leaves_out_the_remainder_only(n: int, world: int) -> None:
    assert sorted(everyone(n, world, "drop_last")) == list(range(n - n % world))


@given(n=small, world=worlds, contract=st.sampled_from(CONTRACTS))
def test_sizes_are_what_is_handed_out(n: int, world: int, contract: Contract) -> None:
    shards = all_ranks(n, world, contract)
    sizes = [len(shard.positions()) for shard in shards]
    assert sizes == [shard.size for shard in shards]
    assert {sum(sizes)} == {shard.total for shard in shards}
    assert max(sizes) - min(sizes) <= 1


@given(n=st.integers(2, 400), world=worlds, contract=st.sampled_from(CONTRACTS), batch=worlds, data=st.data())
def test_before_an_end_each_position_is_handed_out_once(
    n: int, world: int, contract: Contract, batch: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(max(1, start), n - 1))
    shards = [
        Shard(n=n, rank=rank, world=world, contract=contract, start=start, end=end, order="feistel-1", epoch=3)
        for rank in range(world)
    ]
    positions = [shard.positions().tolist() for shard in shards]
    assert sorted(position for own in positions for position in own) == [*range(start, end)]
    assert [shard.size for shard in shards] == [len(own) for own in positions]
    listed = [[p.first + p.stride * j for p in shard.progressions for j in range(p.count)] for shard in shards]
    assert listed == positions
    order = permutation.permute(np.arange(n), n, 0, 3)
    assert all(np.array_equal(shard.indices(), order[own]) for shard, own in zip(shards, positions, strict=True))
    for shard in shards:
        assert shard.total == end - start
        assert shard.steps(batch) == len(range(start, end, batch))
        assert shard.everything == [Progression(0, 1, end)]


@given(n=small, world=worlds, contract=st.sampled_from(CONTRACTS), size=st.integers(1, 50), seed=seeds)
def test_a_shard_is_the_sum_of_its_batches(n: int, world: int, contract: Contract, size: int, seed: int) -> None:
    for rank in {0, world // 2, world - 1}:
        shard = Shard(n=n, rank=rank, world=world, contract=contract, order="feistel-1", seed=seed)
        whole = shard.indices()
        batches = [shard.indices(start, start + size) for start in range(0, len(whole) + size, size)]
        assert np.array_equal(np.concatenate(batches), whole)


@given(n=st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 10**6))
def test_the_order_is_a_permutation_and_has_an_inverse(n: int, seed: int, epoch: int) -> None:
    order = permutation.permute(np.arange(n), n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert np.array_equal(permutation.locate(order, n, seed, epoch), np.arange(n))


@given(n=st.integers(1 << 32, (1 << 63) - 1), seed=seeds, data=st.data())
def test_the_order_has_an_inverse_where_it_cannot_be_listed(n: int, seed: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    order = permutation.permute(positions, n, seed, 1)
    assert ((order >= 0) & (order < n)).all()
    assert np.array_equal(permutation.locate(order, n, seed, 1), positions)


@pytest.mark.parametrize("seed", [0, 1])
def test_epochs_and_seeds_change_the_order(seed: int) -> None:
    n = 60000
    first, second = (permutation.permute(np.arange(n), n, seed, epoch) for epoch in (1, 2))
    other = permutation.permute(np.arange(n), n, seed + 7, 1)
    # Two independent orders agree at about one position.
    assert (first == second).sum() < 10
    assert (first == other).sum() < 10


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
