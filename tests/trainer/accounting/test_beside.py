"""What an optimizer steps with beside the batches of the account: an evaluation, another model, data of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accounts import in_turn, run, tallied, verified
from loops import SIZE, N, Numbers, Times
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from torchtally import Account

EPOCHS = 2
Program = Callable[["Run"], None]


class Run:
    """What a program has: two models, each with its optimizer, and two loaders."""

    def __init__(self, account: Account, *, sharded: bool) -> None:
        self.account, self.times, self.other = account, Times(), nn.Linear(1, 1)
        self.model: nn.Module = fully_shard(self.times) if sharded else DistributedDataParallel(self.times)
        self.optimizer = SGD(self.model.parameters(), lr=torch.distributed.get_world_size())
        self.others = SGD(self.other.parameters(), lr=0.1)
        for each in (self.optimizer, self.others):
            account.optimizer(each)
        self.loader = account.loader(Numbers(), "train", batch_size=SIZE)
        self.tests = account.loader(Numbers(), "test", batch_size=SIZE, trains=False, shuffle=False)

    def backward(self, batch: Tensor) -> None:
        self.account.weigh(self.model(batch), batch).backward()

    def own_backward(self) -> None:
        (0 * self.model(torch.arange(2)) + 0.125 * self.times.rows.sum()).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, waits: int = 0) -> None:
        """One epoch, whose last batches wait for their step."""
        for number, batch in enumerate(self.loader, 1):
            self.backward(batch)
            if number <= len(self.loader) - waits:
                self.step()

    def evaluate(self) -> None:
        for batch in self.tests:
            with torch.no_grad():
                self.model(batch)


def ends(program: Program, sharded: bool = False) -> tuple[list[int], Any]:
    with Account("t", plan={"train": EPOCHS, "test": EPOCHS}) as account:
        run = Run(account, sharded=sharded)
        program(run)
    assert account.last_line
    return [] if sharded else run.times.times, account.last_line.get("caveats", [])


# An evaluation that trains.


def steps_while_batches_wait(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train(waits=2)
        for batch in run.tests:
            run.model(batch).backward()
            run.step()


def steps_once_while_batches_wait(run: Run) -> None:
    for epoch in run.account.epochs():
        run.train(waits=2)
        for batch in run.account.epoch("test", epoch, run.tests):
            run.model(batch.data).backward()
        run.step()


def steps_while_a_batch_is_fetched_ahead(run: Run) -> None:
    for _ in range(EPOCHS):
        batches = iter(run.loader)
        ahead = next(batches)
        for batch in run.tests:
            run.model(batch).backward()
            run.step()
        run.backward(ahead)
        run.step()
        for batch in batches:
            run.backward(batch)
            run.step()


def steps_within_an_accumulation(run: Run) -> None:
    for _ in range(EPOCHS):
        for number, batch in enumerate(run.loader, 1):
            run.backward(batch)
            if number == 2:
                for test in run.tests:
                    run.model(test).backward()
            if number != 2:
                run.step()


def leaves_its_gradients_to_the_next_step(run: Run) -> None:
    for _ in range(EPOCHS):
        for batch in run.tests:
            run.model(batch).backward()
        run.train()


def steps_with_an_iterator_that_stays_open(run: Run) -> None:
    for _ in range(EPOCHS):
        for batch, test in zip(run.loader, run.tests, strict=True):
            run.backward(batch)
            run.step()
            run.model(test).backward()
            run.step()


def steps_by_a_closure(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train(waits=1)
        for batch in run.tests:

            def closure(batch: Tensor = batch) -> float:
                run.model(batch).backward()
                return 0.0

            run.optimizer.step(closure)


# Evaluations, and models beside, that do not.


def clears_by_the_optimizer(run: Run) -> None:
    for _ in range(EPOCHS):
        for batch in run.tests:
            run.model(batch).backward()
        run.optimizer.zero_grad()
        run.train()


def clears_by_the_model(run: Run) -> None:
    for _ in range(EPOCHS):
        for batch in run.tests:
            run.model(batch).backward()
        for batch in run.loader:
            run.model.zero_grad()
            run.backward(batch)
            run.optimizer.step()
        run.model.zero_grad(set_to_none=False)


def clips_after_an_evaluation(run: Run) -> None:
    """The gradients that wait are written to after a test batch, and by no backward pass."""
    for _ in range(EPOCHS):
        tests = iter(run.tests)
        for batch in run.loader:
            run.backward(batch)
            next(tests)
            nn.utils.clip_grad_norm_(run.model.parameters(), 1e9)
            run.step()
        assert next(tests, None) is None


def steps_after_an_evaluation(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train(waits=2)
        run.evaluate()
        run.step()


def pairs(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """One iterator of the tests stays open beside the training."""
    for _ in range(EPOCHS):
        yield from zip(run.loader, run.tests, strict=True)


def steps_another_without_gradients(run: Run) -> None:
    for batch, _ in pairs(run):
        run.backward(batch)
        run.step()
        run.others.step()


def steps_another_with_gradients_of_zero(run: Run) -> None:
    for batch, _ in pairs(run):
        run.backward(batch)
        run.step()
        (0 * run.other(torch.ones(1, 1)).sum()).backward()
        run.others.step()


def plays_two_of_which_one_sees_no_batch(run: Run) -> None:
    for batch, _ in pairs(run):
        run.backward(batch)
        (0 * run.model(torch.arange(2))).backward()
        run.step()
        run.other(torch.ones(1, 1)).sum().backward()
        run.others.step()
        run.others.zero_grad()


def steps_with_a_loss_of_zero(run: Run) -> None:
    for number, (batch, _) in enumerate(pairs(run)):
        (run.account.weigh(run.model(batch)) * (number % 3)).backward()
        run.step()


def steps_twice_within_the_loop(run: Run) -> None:
    """As for a judge that has a step with what another model makes."""
    for _ in range(EPOCHS):
        for batch in run.loader:
            run.backward(batch)
            run.step()
            run.own_backward()
            run.step()
        run.evaluate()


# Data of its own.


def steps_after_the_last_epoch(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train()
        run.evaluate()
    run.own_backward()
    run.step()


def steps_between_two_epochs(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train()
        run.own_backward()
        run.step()
        run.evaluate()


def leaves_gradients_between_epochs(run: Run) -> None:
    for _ in range(EPOCHS):
        run.train()
        run.evaluate()
        run.own_backward()
    run.optimizer.zero_grad()


def leaves_gradients_between_epochs_fetched_ahead(run: Run) -> None:
    for _ in range(EPOCHS):
        batches = iter(run.loader)
        batch = next(batches, None)
        while batch is not None:
            ahead = next(batches, None)
            run.backward(batch)
            run.step()
            batch = ahead
        run.own_backward()
    run.optimizer.zero_grad()
    for _ in range(EPOCHS):
        run.evaluate()


def leaves_those_of_a_dry_run(run: Run) -> None:
    """A pass before the training, to see what memory it takes."""
    run.own_backward()
    for _ in range(EPOCHS):
        run.train()
        run.evaluate()


def leaves_those_of_a_look_at_a_batch(run: Run) -> None:
    run.model(next(iter(run.loader))).backward()
    for _ in range(EPOCHS):
        run.train()
        run.evaluate()


def clears_those_of_a_dry_run(run: Run) -> None:
    """Before each step, as most loops do."""
    run.own_backward()
    for _ in range(EPOCHS):
        for batch in run.loader:
            run.model.zero_grad()
            run.backward(batch)
            run.optimizer.step()
        run.evaluate()


def adds_a_penalty_by_its_own_backward_pass(run: Run) -> None:
    """Before the loss of each batch."""
    for _ in range(EPOCHS):
        for batch in run.loader:
            run.own_backward()
            run.backward(batch)
            run.step()
        run.evaluate()


def steps_before_the_first_epoch(run: Run) -> None:
    """A warm-up, whose weights are those that the training begins with."""
    run.own_backward()
    run.step()
    for _ in range(EPOCHS):
        run.train()
        run.evaluate()


IN, WITH = (f"an optimizer has stepped {how} test epoch 1, whose loader" for how in ("in", "with gradients of"))
TRAINED = [EPOCHS] * N
WRONG: list[tuple[Program, bool, str]] = [
    (steps_while_batches_wait, False, IN),
    (steps_while_batches_wait, True, IN),
    (steps_once_while_batches_wait, False, WITH),
    (steps_while_a_batch_is_fetched_ahead, False, IN),
    (steps_within_an_accumulation, False, WITH),
    (steps_within_an_accumulation, True, WITH),
    (leaves_its_gradients_to_the_next_step, False, WITH),
    (leaves_its_gradients_to_the_next_step, True, WITH),
    (steps_with_an_iterator_that_stays_open, False, IN),
    (steps_with_an_iterator_that_stays_open, True, IN),
    (steps_by_a_closure, False, IN),
]
RIGHT: list[Program] = [
    clears_by_the_optimizer,
    clears_by_the_model,
    clips_after_an_evaluation,
    steps_after_an_evaluation,
    steps_another_without_gradients,
    steps_another_with_gradients_of_zero,
    plays_two_of_which_one_sees_no_batch,
    steps_with_a_loss_of_zero,
    steps_twice_within_the_loop,
    steps_before_the_first_epoch,
    clears_those_of_a_dry_run,
    adds_a_penalty_by_its_own_backward_pass,
]
TRAINS_OTHERS = (steps_twice_within_the_loop, steps_before_the_first_epoch, adds_a_penalty_by_its_own_backward_pass)
OUTSIDE: list[Program] = [
    steps_after_the_last_epoch,
    steps_between_two_epochs,
    leaves_gradients_between_epochs,
    leaves_gradients_between_epochs_fetched_ahead,
    leaves_those_of_a_dry_run,
    leaves_those_of_a_look_at_a_batch,
]
SAID = "an optimizer has stepped with gradients of no batch, from outside the loops"


def test_an_evaluation_that_trains_is_refused_whatever_waits_for_a_step(subtests: pytest.Subtests) -> None:
    started = in_turn(2, ((ends, program, sharded) for program, sharded, _ in WRONG))
    for (program, sharded, said), found in zip(WRONG, started, strict=True):
        with subtests.test(program.__name__, sharded=sharded):
            assert [each["code"] for each in found] == [2, 2], found[0]["err"]
            assert any(said in each["err"] for each in found), found[0]["err"]
            assert not [line for line in tallied(found[0]["out"]) if line["phase"] == "all"]


def test_an_evaluation_of_a_sharded_model_that_clears_its_gradients_is_accepted() -> None:
    for found in run(2, ends, clears_by_the_optimizer, True):
        assert (found["code"], found["result"]) == (0, ([], [])), found["err"]


def test_what_only_evaluates_and_other_models_are_accepted(subtests: pytest.Subtests) -> None:
    for program, found in zip(RIGHT, in_turn(2, ((ends, program) for program in RIGHT)), strict=True):
        with subtests.test(program.__name__):
            for each in found:
                assert each["code"] == 0, each["err"]
                times, caveats = each["result"]
                assert caveats == []
                if program is steps_with_a_loss_of_zero:
                    [last] = [line for line in tallied(found[0]["out"]) if line["phase"] == "all"]
                    assert last["phases"]["train"]["dropped"] == EPOCHS * 2 * SIZE
                elif program not in TRAINS_OTHERS:
                    assert times == TRAINED
            assert verified(found).holds


def test_gradients_of_no_batch_from_outside_the_loops_are_said(subtests: pytest.Subtests) -> None:
    for program, found in zip(OUTSIDE, in_turn(2, ((ends, program) for program in OUTSIDE)), strict=True):
        with subtests.test(program.__name__):
            for each in found:
                assert each["code"] == 0, each["err"]
                assert each["result"][1] == [SAID]
