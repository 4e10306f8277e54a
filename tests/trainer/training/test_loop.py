"""Training on several ranks is training on one: the same gradients, counts and order, whatever divides or not."""

import dataclasses
from typing import Any

import pytest
import ranks
import torch
import toy
from messages import plain
from torch import nn
from torch.distributed.distributed_c10d import Store
from torch.nn import functional

from torchtally.errors import Refused
from torchtally.options import Training
from torchtally.proof import permutation
from torchtally.proof.contract import Contract


def alone(options: Training, n: int, batch: int) -> dict[str, torch.Tensor]:
    """The weights after one process has made the same global batches, written without any of the loop's code."""
    torch.manual_seed(options.seed)
    model: nn.Module = toy.task(torch.float64).model(options)
    train = toy.samples(n, 1, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for epoch in range(1, options.epochs + 1):
        order = torch.from_numpy(permutation.permute(torch.arange(n).numpy(), n, options.seed, epoch))
        for rows in order.split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(train.inputs[rows]), train.labels[rows]).backward()
            optimizer.step()
    return dict(model.state_dict())


# Samples and global batch: primes and powers of two, more ranks than samples of a step, and steps than samples.
SHAPES = [(37, 8), (64, 16), (61, 7), (64, 13), (97, 32), (5, 16), (32, 1), (31, 3)]


def train_all(rank: int, world: int, store: Store) -> list[dict[str, Any]]:
    return [toy.fit(rank, world, store, parity_options(batch), n, 7, torch.float64) for n, batch in SHAPES]


def parity_options(batch: int) -> Training:
    return Training(epochs=2, global_batch_size=batch, lr=0.1, seed=5)


@pytest.mark.parametrize("world", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 9))])
def test_ranks_together_make_the_steps_of_one_process(world: int) -> None:
    found = ranks.run(world, train_all)
    for case, (n, batch) in enumerate(SHAPES):
        expected = alone(parity_options(batch), n, batch)
        for rank in range(world):
            for name, value in expected.items():
                weights = torch.tensor(found[rank][case]["weights"][name], dtype=torch.float64)
                torch.testing.assert_close(weights, value, rtol=1e-12, atol=1e-12)


def test_a_batch_size_is_that_of_a_rank() -> None:
    by_rank = ranks.run(3, toy.fit, Training(epochs=1, batch_size=5, lr=0.1), 64, 7)
    by_job = ranks.run(3, toy.fit, Training(epochs=1, global_batch_size=15, lr=0.1), 64, 7)
    assert by_rank[0]["weights"] == by_job[0]["weights"]
    assert by_rank[0]["phases"][0][-1]["batch"] == 15


def with_batch_norm(rank: int, world: int, store: Store, options: Training, n: int) -> dict[str, Any]:
    task = dataclasses.replace(
        toy.task(), model=lambda options: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    )
    return toy.fit(rank, world, store, options, n, 50, toy=task)


def test_batch_norm_gets_drop_last_and_the_same_statistics_on_all_ranks() -> None:
    """Of 53 samples one is left out, and the last step has 4 for the 2 ranks."""
    found = ranks.run(2, with_batch_norm, Training(epochs=2, global_batch_size=8), 53)
    assert [result["phases"][0][-1]["contract"] for result in found] == ["drop_last"] * 2
    assert found[0]["phases"][0][-1]["consumed"] == 52
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["correct"] == found[1]["correct"]


@pytest.mark.parametrize("contract", [None, "exact", "padded"])
def test_batch_norm_on_one_row_is_refused(contract: Contract | None) -> None:
    options = Training(epochs=1, global_batch_size=10, contract=contract)
    for result in ranks.run(2, with_batch_norm, options, 52 if contract != "exact" else 53):
        assert isinstance(result, Refused)
        assert "BatchNorm needs 2 on each" in str(result)
        assert "--global-batch-size 10" in str(result)


def test_a_contract_that_leaves_no_sample_is_refused() -> None:
    for result in ranks.run(3, toy.fit, Training(epochs=1, contract="drop_last"), 2, 7):
        assert isinstance(result, Refused)
        assert (
            plain(str(result)) == "--contract drop_last leaves none of 2 samples for 3 ranks: use fewer ranks, or exact"
        )


def test_evaluation_counts_every_sample_once_and_says_so() -> None:
    """6994 samples over 8 ranks are 6994: not 7000, and no rank waits for another."""
    found = ranks.run(8, toy.fit, Training(epochs=1, batch_size=8, lr=0.5), 800, 6994)
    assert found[0]["phases"][1][-1]["consumed"] == 6994
    weights = {name: torch.tensor(value) for name, value in found[0]["weights"].items()}
    model = toy.task().model(Training())
    model.load_state_dict(weights)
    test = toy.samples(6994, 2)
    correct = int((model(test.inputs).argmax(dim=1) == test.labels).sum())
    assert [result["correct"] for result in found] == [[correct]] * 8
