"""A batch size of all ranks together: the same steps at any number of ranks."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from accounts import assert_ends, in_turn
from torch.utils.data import DataLoader, TensorDataset

from torchtally import Account, Batch
from torchtally.proof.permutation import permute

N, SIZE = 38, 7  # the last step has 3


def steps(own: bool) -> list[list[int]]:
    """The samples of this rank in each step."""
    found = []
    with Account("t", plan={"train": 1}, seed=3) as account:
        if own:
            sampler = account.sampler("train", N, global_batch_size=SIZE)
            pairs: Any = [(index, index) for index in range(N)]
            loader: Any = DataLoader(pairs, batch_sampler=sampler.batches)
            assert len(sampler.batches) == 6  # type: ignore[arg-type]
        else:
            loader = account.loader(TensorDataset(torch.arange(N)), "train", global_batch_size=SIZE)
        for batch in account.epoch("train", 1, loader):
            data = batch.data if own else batch.data[0]
            assert batch.indices.tolist() == data.tolist()
            assert batch.rows == (SIZE if batch.step < 6 else 3)
            found.append(batch.indices.tolist())
            account.commit()
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_steps_are_the_same_at_any_number_of_ranks(world: int) -> None:
    """Of a loader, and of a sampler in a loader of the program's own."""
    order = permute(np.arange(N), N, 3, 1).tolist()
    for of_ranks in in_turn(world, [(steps, False), (steps, True)]):
        for number, parts in enumerate(zip(*(each["result"] for each in of_ranks), strict=True)):
            expected = order[number * SIZE : (number + 1) * SIZE]
            assert sorted(index for part in parts for index in part) == sorted(expected)


def refused(arguments: dict[str, Any]) -> None:
    with Account("t", plan={"train": 1}) as account:
        account.loader(TensorDataset(torch.arange(N)), "train", **arguments)


NO_SIZES: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 2, "global_batch_size": 4}, "it takes batch_size=2 or global_batch_size=4, and not both"),
    ({"global_batch_size": 0}, "global_batch_size=0 must be a whole number from 1"),
    ({"batch_size": 1, "sampler": range(N), "global_batch_size": 4}, "it takes global_batch_size=4 or a sampler"),
    ({}, "batch_size=None must be a whole number from 1"),
]


def test_what_is_no_batch_size_is_refused(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 1, [((refused, arguments), 2, f"train: {said}") for arguments, said in NO_SIZES])


class Own:
    """Batches of the program's own, which seed what a step draws from, or do not."""

    def __init__(self, seeds: bool):
        self.seeds = seeds

    def __iter__(self) -> Any:
        for index in range(3):
            torch.manual_seed(index)
            yield Batch(torch.tensor([index]), index)


def draws(seeds: bool) -> list[tuple[float, float]]:
    """What the loop draws in each step."""
    found = []
    with Account("t", plan={"train": 1}) as account:
        account.sampler("train", 3, batch_size=1, shuffle=False)
        random.seed(1)
        for _ in account.epoch("train", 1, Own(seeds)):
            found.append((random.random(), torch.rand(()).item()))
            account.commit()
    return found


def test_batches_that_seed_what_a_step_draws_from_are_left_alone() -> None:
    own, seeded = (found["result"] for [found] in in_turn(1, [(draws, True), (draws, False)]))
    random.seed(1)
    expected = []
    for index in range(3):
        torch.manual_seed(index)
        expected.append((random.random(), torch.rand(()).item()))
    assert own == expected
    assert not {number for pair in seeded for number in pair} & {number for pair in expected for number in pair}
