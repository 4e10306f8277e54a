"""What torch computes where the samples are is what numpy computes, to the bit. Here that is the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.accounting.order import cuda
from torchtally.proof import digest, permutation
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.modular import P
from torchtally.proof.order import Order
from torchtally.proof.shards import Shard

CPU = torch.device("cpu")
seeds = st.integers(0, 2**63 - 1)
# Both sides of where the network's rounds and its halves change, and up to the largest.
sizes = st.one_of(
    st.integers(1, 5000), *(st.integers(2**k - 3, 2**k + 3) for k in (12, 31, 32, 33, 62)), st.just(2**63 - 1)
)


@given(n=sizes, seed=seeds, epoch=st.integers(0, 10**6), data=st.data())
def test_the_order_is_the_same_and_has_the_same_inverse(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50)), dtype=np.int64)
    indices = cuda.permute(torch.from_numpy(positions), n, seed, epoch)
    assert indices.tolist() == permutation.permute(positions, n, seed, epoch).tolist()
    assert cuda.locate(indices, n, seed, epoch).tolist() == positions.tolist()


@given(
    n=st.integers(1, 400),
    world=st.integers(1, 9),
    contract=st.sampled_from(CONTRACTS),
    order=st.sampled_from(["feistel-1", "sequential"]),
    seed=seeds,
    data=st.data(),
)
def test_a_shard_is_the_same(
    n: int, world: int, contract: Contract, order: Order, seed: int, data: st.DataObject
) -> None:
    rank, start = data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, n))
    begin = data.draw(st.integers(0, 60))
    part = begin, begin + data.draw(st.integers(0, 60))
    shard = Shard(n=n, rank=rank, world=world, contract=contract, order=order, seed=seed, epoch=3, start=start)
    indices = cuda.indices(shard, *part, CPU)
    assert indices.tolist() == shard.indices(*part).tolist()
    assert cuda.positions_of(indices, shard).tolist() == shard.positions(*part).tolist()


@given(n=sizes, seed=seeds, g=st.integers(2, P - 1), data=st.data())
def test_the_digest_of_a_shard_is_the_same(n: int, seed: int, g: int, data: st.DataObject) -> None:
    first, gap = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 9))
    positions = np.arange(first, min(first + 40 * gap, n), gap, dtype=np.int64)
    indices = permutation.permute(positions, n, seed, 1)
    found = cuda.digest_of(torch.from_numpy(positions), torch.from_numpy(indices), g)
    assert found == digest.of_samples(positions, indices, g)


@pytest.mark.parametrize("positions", [[], [7], [3, 3, 3], [9, 8, 7], [0, 1, 3, 2], [5, 6, 8, 9]])
def test_the_digest_of_anything_else_is_the_same(positions: list[int]) -> None:
    here = np.array(positions, dtype=np.int64)
    found = cuda.digest_of(torch.from_numpy(here), torch.from_numpy(here) + 2**62, 12345)
    assert found == digest.of_samples(here, here + 2**62, 12345)
