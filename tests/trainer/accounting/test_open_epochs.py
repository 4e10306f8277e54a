"""Epochs that are open at once: a step that uses gradients of two epochs, and batches of the next one fetched ahead."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from accounts import in_turn, run, verified
from loops import SIZE, N, Numbers, Times
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from torchtally import Account

EPOCHS = 3
Saved = tuple[dict[str, Any], Tensor]
After = Callable[[], None]
Program = Callable[[Account, Iterable[Tensor], Any, SGD, After], None]


def endless(account: Account, loader: Iterable[Tensor]) -> Iterator[Tensor]:
    for _ in account.epochs():
        yield from loader


def accumulates(
    account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After, of: int = 5
) -> None:
    """Five batches for each step, whatever the epoch. An epoch has 3 batches of two ranks, or 6 of one."""
    optimizer.zero_grad()
    made = 0
    for made, batch in enumerate(endless(account, loader), 1):
        account.weigh(model(batch)).backward()
        if made % of == 0:
            optimizer.step()
            optimizer.zero_grad()
            after()
    if made % of:
        optimizer.step()
        after()


def fetches_ahead(account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After) -> None:
    """Two batches are fetched before the first of them is trained."""
    ahead: list[Tensor] = []

    def train(batch: Tensor) -> None:
        optimizer.zero_grad()
        account.weigh(model(batch), batch).backward()
        optimizer.step()
        after()

    for batch in endless(account, loader):
        ahead.append(batch)
        if len(ahead) > 2:
            train(ahead.pop(0))
    while ahead:
        train(ahead.pop(0))


def moves_aside(account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After) -> None:
    """The gradients of five batches, whatever the epoch, are moved aside and put back together."""
    [rows] = optimizer.param_groups[0]["params"]
    aside: list[Tensor] = []
    batches: list[Tensor] = []

    def step() -> None:
        rows.grad = sum(aside, torch.zeros(N))
        account.holds(*batches)
        optimizer.step()
        optimizer.zero_grad()
        aside.clear()
        batches.clear()
        after()

    for batch in endless(account, loader):
        account.weigh(model(batch)).backward()
        aside.append(rows.grad)
        batches.append(batch)
        optimizer.zero_grad()
        if len(aside) == 5:
            step()
    if aside:
        step()


def leaves_out_a_step_between(
    account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After
) -> None:
    """Gradients that overflow are cleared at the beginning of the next step, which can be in the next epoch."""
    for number, batch in enumerate(endless(account, loader)):
        optimizer.zero_grad()
        account.weigh(model(batch)).backward()
        if number % 3 != 2:
            optimizer.step()
            after()
    optimizer.zero_grad()


def trains(program: Program, state: Saved | None, batch_size: int, epochs: int) -> tuple[list[int], list[Saved]]:
    """How often each sample is in the weights, and what was saved after each step."""
    model, saved = Times(), []
    if state:
        model.rows.data.copy_(state[1])
    world = torch.distributed.get_world_size()
    driven = DistributedDataParallel(model) if world > 1 else model
    optimizer = SGD(model.parameters(), lr=world)  # DDP averages
    with Account("t", epochs=epochs) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), batch_size=batch_size)
        if state:
            account.load_state_dict(state[0])

        def after() -> None:
            saved.append((account.state_dict(), model.rows.detach().clone()))

        program(account, loader, driven, optimizer, after)
    return model.times, saved


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("program", [accumulates, fetches_ahead, moves_aside])
def test_each_sample_is_in_the_weights_once_an_epoch_whatever_step_it_resumes_from(
    program: Program, world: int
) -> None:
    found = run(world, trains, program, None, SIZE, EPOCHS)
    assert [each["code"] for each in found] == [0] * world, found[0]["err"]
    assert all(each["result"][0] == [EPOCHS] * N for each in found)
    assert verified(found).holds
    saved = [*zip(*(each["result"][1] for each in found), strict=True)]
    assert all(len({str(state) for state, _ in of_ranks}) == 1 for of_ranks in saved)
    for again in in_turn(world, ((trains, program, of_ranks[0], SIZE, EPOCHS) for of_ranks in saved)):
        assert [each["code"] for each in again] == [0] * world, again[0]["err"]
        assert all(each["result"][0] == [EPOCHS] * N for each in again)


def test_a_resume_by_other_ranks_goes_on_in_the_epoch_that_is_reached() -> None:
    [found] = run(1, trains, accumulates, None, SIZE, EPOCHS)
    for again in in_turn(2, ((trains, fetches_ahead, state, SIZE, EPOCHS) for state in found["result"][1])):
        assert [each["code"] for each in again] == [0, 0], again[0]["err"]
        assert again[0]["result"][0] == [EPOCHS] * N


def test_epochs_of_one_step_can_be_accumulated() -> None:
    found = run(2, trains, accumulates, None, N, 7)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert found[0]["result"][0] == [7] * N
    assert verified(found).holds


def test_what_is_cleared_in_the_next_epoch_is_dropped_from_its_own() -> None:
    found = run(2, trains, leaves_out_a_step_between, None, SIZE, EPOCHS)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    lines = [line for line in found[0]["lines"] if line["rank"] == "all"]
    assert [line["dropped"] for line in lines] == [6] * EPOCHS  # the last step has the rest of 22 samples
    assert sum(found[0]["result"][0]) == EPOCHS * (N - 6)


def loses_the_last(account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After) -> None:
    """One rank forgets to weigh the last loss of the first epoch, which has 3 batches. It says what it trains."""
    rank = torch.distributed.get_rank()
    for number, batch in enumerate(endless(account, loader)):
        optimizer.zero_grad()
        loss = model(batch)
        if not (number == 2 and rank == 1):
            account.weigh(loss, batch)
        loss.backward()
        optimizer.step()
        print(f"batch {number + 1}", file=sys.stderr)


def test_a_batch_that_one_rank_has_lost_is_told_at_the_end_of_the_next_epoch() -> None:
    found = run(2, trains, loses_the_last, None, SIZE, EPOCHS)
    assert [each["code"] for each in found] == [3, 3]
    lines = [line for line in found[0]["lines"] if line["rank"] == "all"]
    assert [(line["epoch"], line["lost"]) for line in lines] == [(1, 3)]
    assert all("batch 6\n" in each["err"] and "batch 7\n" not in each["err"] for each in found)
    assert "train epoch 1 is not proved" in found[0]["err"] and "skip(reason) leaves one out" in found[1]["err"]


def stops(account: Account, loader: Iterable[Tensor], model: Any, optimizer: SGD, after: After) -> None:
    """Within the second epoch, of which the step has the first batch and the last of the first epoch."""
    for number, batch in enumerate(endless(account, loader), 1):
        account.weigh(model(batch)).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == 4:
            account.stop("patience")


def test_a_run_is_stopped_after_a_step_of_two_epochs() -> None:
    found = run(2, trains, stops, None, SIZE, EPOCHS)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert sum(found[0]["result"][0]) == N + 8
    verdict = verified(found)
    assert verdict.holds and [line["epoch"] for line in found[0]["lines"] if line["rank"] == "all"] == [1, 2]


def steps_at_its_own_pace() -> int:
    """Each rank has a model of its own. Rank 0 steps in each epoch, of one batch, and rank 1 in each third one."""
    model = Times()
    optimizer = SGD(model.parameters(), lr=1)
    every = 3 if torch.distributed.get_rank() else 1
    with Account("t", epochs=6) as account:
        account.optimizer(optimizer, replicated=False)
        for number, batch in enumerate(endless(account, account.loader(Numbers(), batch_size=N)), 1):
            account.weigh(model(batch)).backward()
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    return sum(model.times)


def test_epochs_that_one_rank_has_decided_wait_for_another() -> None:
    found = run(2, steps_at_its_own_pace)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert sum(each["result"] for each in found) == 6 * N
    assert verified(found).holds


def steps_in_the_middle_of_each_epoch() -> tuple[int, Any]:
    """Two models, of which the last batches of an epoch wait for the next one, and those of the run are cleared."""
    models = Times(), Times()
    optimizers = [SGD(each.parameters(), lr=1) for each in models]
    with Account("t", epochs=EPOCHS) as account:
        for each in optimizers:
            account.optimizer(each)
        for number, batch in enumerate(endless(account, account.loader(Numbers(), batch_size=SIZE))):
            account.weigh(models[0](batch) + models[1](batch)).backward()
            for each in optimizers if number % 6 == 3 else ():
                each.step()
                each.zero_grad()
        for each in optimizers:
            each.zero_grad()
    assert account.last_line
    return sum(models[0].times), (account.last_line["phases"]["train"]["dropped"], account.last_line.get("caveats"))


def test_a_step_with_batches_of_two_epochs_is_one_of_both() -> None:
    [found] = run(1, steps_in_the_middle_of_each_epoch)
    assert (found["code"], found["result"]) == (0, (EPOCHS * N - 6, (6, None))), found["err"]
