"""Errors that a loop catches, as of no memory: in a backward pass, or in a step. The batch counts as dropped."""

import functools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from accounts import in_turn
from loops import SIZE, Loop, N, Times, in_the_weights
from torch import Tensor
from torch.optim import SGD

from torchtally import Account


class Two:
    """A model of two parameters. An error ends the backward pass between the gradients of both."""

    def __init__(self, model: Times, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.other, self.optimizer = model, Times(), optimizer
        optimizer.add_param_group({"params": [self.other.rows]})

    def loss(self, batch: Tensor, *, fails: bool) -> Tensor:
        last = self.other.rows * 1
        if fails:
            last.register_hook(fail)
        loss: Tensor = self.model(batch) - last[batch].sum()
        return loss

    def clear(self, how: str) -> None:
        if how == "optimizer":
            self.optimizer.zero_grad()
        if how == "hand":
            self.model.rows.grad = self.other.rows.grad = None


def fail(_: Any) -> None:
    raise MemoryError


def leaves_out(
    account: Account,
    loader: Iterable[Tensor],
    model: Times,
    optimizer: Any,
    at: int = 2,
    clears: str = "optimizer",
    retries: bool = False,
    every: int = 1,
) -> None:
    two = Two(model, optimizer)
    for number, batch in enumerate(loader):
        try:
            account.weigh(two.loss(batch, fails=number == at)).backward()
        except MemoryError:
            two.clear(clears)
            if clears == "skip":
                account.skip("no memory")
            for half in batch.split(SIZE // 2) if retries else ():
                account.weigh(two.loss(half, fails=False), batch).backward()
            if not retries:
                continue
        if number % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()


def puts_back_what_was_there(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """Of the second of three batches that it accumulates, nothing is left."""
    two, there = Two(model, optimizer), []
    for number, batch in enumerate(loader):
        kept = [None if each.grad is None else each.grad.clone() for each in (model.rows, two.other.rows)]
        try:
            account.weigh(two.loss(batch, fails=number == 1)).backward()
            there.append(batch)
        except MemoryError:
            model.rows.grad, two.other.rows.grad = kept
        if number % 3 == 2:
            account.holds(*there)
            optimizer.step()
            optimizer.zero_grad()
            there.clear()


def trains_one_loss_of_two(
    account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any, fails: int = 0
) -> None:
    """A mistake: both are weighed before, and the step has what is left of one of them."""
    two = Two(model, optimizer)
    for number, batch in enumerate(loader):
        losses = [account.weigh(two.loss(batch, fails=(number, each) == (2, fails)), batch) for each in (0, 1)]
        for each in losses:
            try:
                each.backward()
            except MemoryError:
                continue
        optimizer.step()
        optimizer.zero_grad()


def fails_in_a_closure(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """Its first pass fails, before LBFGS has moved the weights."""
    steps = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, tolerance_grad=0, tolerance_change=0)
    account.optimizer(steps)
    for number, batch in enumerate(loader):
        passes = 0

        def closure(batch: Tensor = batch, number: int = number) -> Tensor:
            nonlocal passes
            passes += 1
            steps.zero_grad()
            rows = model.rows * 1
            if (number, passes) == (2, 1):
                rows.register_hook(fail)
            loss = account.weigh((rows[batch] - 1).square().sum(), batch)
            loss.backward()
            return loss

        try:
            steps.step(closure)
        except MemoryError:
            steps.zero_grad()


class Fails(SGD):
    """Its step can fail, before it writes to a parameter, as where it makes its state."""

    fails = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.fails:
            raise MemoryError
        super().step(closure)


def fails_in_a_step(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    optimizer = Fails(model.parameters(), lr=1)
    two = Two(model, optimizer)
    account.optimizer(optimizer)
    for number, batch in enumerate(loader):
        account.weigh(two.loss(batch, fails=False)).backward()
        optimizer.fails = number == 5
        try:
            optimizer.step()
        except MemoryError:
            two.clear("hand")
        optimizer.zero_grad()


def fails_between_steps(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """Each parameter is stepped in the backward pass."""
    two = Two(model, optimizer)
    for each in (model.rows, two.other.rows):
        own = SGD([each], lr=1)
        account.optimizer(own)

        def steps(_: Tensor, own: SGD = own) -> None:
            own.step()
            own.zero_grad()

        each.register_post_accumulate_grad_hook(steps)
    for number, batch in enumerate(loader):
        try:
            account.weigh(two.loss(batch, fails=number == 2)).backward()
        except MemoryError:
            continue


DROPPED: list[tuple[Loop, int]] = [
    (leaves_out, 8),
    *((functools.partial(leaves_out, at=at, clears="hand"), dropped) for at, dropped in ((2, 8), (5, 4))),
    *((functools.partial(leaves_out, retries=True, clears=each), 0) for each in ("optimizer", "hand")),
    (functools.partial(leaves_out, at=4, every=3), 16),
    (puts_back_what_was_there, 8),
    (fails_in_a_closure, 8),
    (fails_in_a_step, 4),
]
TORN = "gradients of train epoch 1, step 3 of 6, whose backward pass ended by an error, so they are there in part"
HALF = "batches are in a part of the weights: let the error end the program"
REFUSED: list[tuple[Loop, str]] = [
    *((functools.partial(leaves_out, clears=each), TORN) for each in ("", "skip")),
    (functools.partial(leaves_out, clears="", retries=True), TORN),
    (functools.partial(leaves_out, clears="", every=2), TORN),
    *((functools.partial(trains_one_loss_of_two, fails=each), TORN) for each in (0, 1)),
    (fails_between_steps, HALF),
]


def test_a_batch_whose_backward_pass_or_step_fails_is_dropped(subtests: pytest.Subtests) -> None:
    started = in_turn(1, ((in_the_weights, loop) for loop, _ in DROPPED))
    for (loop, dropped), [found] in zip(DROPPED, started, strict=True):
        with subtests.test(str(loop)):
            assert (found["code"], found["result"] and found["result"][1]) == (0, dropped), found["err"]
            assert loop is fails_in_a_closure or sum(found["result"][0]) == 2 * N - dropped


def test_a_step_with_a_part_of_a_batch_is_refused(subtests: pytest.Subtests) -> None:
    started = in_turn(1, ((in_the_weights, loop) for loop, _ in REFUSED))
    for (loop, said), [found] in zip(REFUSED, started, strict=True):
        with subtests.test(str(loop)):
            assert found["code"] == 2 and said in found["err"], found["err"]
