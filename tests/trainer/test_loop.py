"""Training on several ranks is training on one: the same gradients, counts and order, whatever divides or not."""

import math

import pytest
import ranks
import torch
import toy
from torch import nn
from torch.nn import functional

from torchtally import shards
from torchtally.options import Training


def alone(options: Training, n: int, world: int) -> dict[str, torch.Tensor]:
    """The weights after one process has made the same global batches, written without any of the loop's code."""
    torch.manual_seed(options.seed)
    model: nn.Module = toy.task(torch.float64).model(options)
    train = toy.samples(n, 1, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for epoch in range(1, options.epochs + 1):
        order = torch.from_numpy(shards.permute(torch.arange(n).numpy(), n, options.seed, epoch))
        for batch in order.split(options.batch_size * world):
            optimizer.zero_grad()
            functional.cross_entropy(model(train.inputs[batch]), train.labels[batch]).backward()
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(
    ("world", "n", "batch"), [(1, 37, 8), (2, 37, 4), (3, 64, 5), (4, 97, 8), (4, 33, 8), (5, 16, 3), (7, 101, 2)]
)
def test_ranks_together_make_the_steps_of_one_process(world: int, n: int, batch: int) -> None:
    options = Training(epochs=3, batch_size=batch, lr=0.1, seed=5)
    expected = alone(options, n, world)
    for result in ranks.run(world, toy.fit, options, n, 7, toy.loop.batches, torch.float64):
        for name, value in expected.items():
            torch.testing.assert_close(
                torch.tensor(result["weights"][name], dtype=torch.float64), value, rtol=1e-12, atol=1e-12
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


def test_the_model_learns() -> None:
    found = ranks.run(2, toy.fit, Training(epochs=5, batch_size=8, lr=0.3), 800, 10)
    model = toy.task().model(Training())
    model.load_state_dict({name: torch.tensor(value) for name, value in found[0]["weights"].items()})
    test = toy.samples(1000, 3)
    assert (model(test.inputs).argmax(dim=1) == test.labels).float().mean() > 0.95


@pytest.mark.parametrize(("n", "world", "size"), [(10, 4, 2), (3, 4, 8), (65539, 2, 32768), (100000, 3, 7)])
def test_every_rank_makes_the_same_number_of_steps(n: int, world: int, size: int) -> None:
    phase = toy.Phase(name="train", epoch=1, n=n, contract="exact", order="feistel-1")
    steps = []
    for rank in range(world):
        own = list(toy.loop.batches(toy.run(rank, world, Training()), phase, size))
        steps.append(len(own))
        assert torch.cat(own).tolist() == shards.indices(n, rank, world, "exact", "feistel-1", 0, 1).tolist()
        assert all(len(batch) == size for batch in own[:-1])
    assert set(steps) == {math.ceil(math.ceil(n / world) / size)}
