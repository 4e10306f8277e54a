"""Loops that leave an epoch, or hold gradients at its end: nothing is decided before its time, and no rank waits."""

import functools
import time
from collections.abc import Callable

import pytest
import torch
from accounts import assert_ends, in_turn, run, tallies, verified
from loops import SIZE, N, Numbers, Times
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_value_
from torch.optim import SGD

from torchtally import Account

Body = Callable[[Account, Times, DistributedDataParallel, SGD], None]


def trains(body: Body, plan: dict[str, int]) -> list[float]:
    model = Times()
    driven = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=torch.distributed.get_world_size())
    with Account("t", plan=plan) as account:
        account.optimizer(optimizer)
        body(account, model, driven, optimizer)
    return model.rows.tolist()


def clips_what_overflows(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    """The remainder of an accumulation is stepped after the batch loop, with gradients that were infinite."""
    loader = account.loader(Numbers(), batch_size=SIZE)
    for _ in account.epochs():
        for number, batch in enumerate(loader, 1):
            account.weigh(driven(batch) * (float("inf") if number == 3 else 1)).backward()
            if number == 2:
                optimizer.step()
                optimizer.zero_grad()
        clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_finite_by_the_time_of_the_step_counts() -> None:
    found = run(2, trains, clips_what_overflows, {"train": 2})
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert all(found[0]["result"])
    [last] = tallies(found[0]["out"])[1]
    assert "dropped" not in last["phases"]["train"]


def trains_what_it_looks_at(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    loader = account.loader(Numbers(), batch_size=SIZE)
    driven(next(iter(loader))).backward()
    optimizer.step()
    for _ in account.epochs():
        for batch in loader:
            optimizer.zero_grad()
            account.weigh(driven(batch)).backward()
            optimizer.step()


def looks_at_both(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    """Each of two phases has one batch."""
    loaders = [account.loader(Numbers(), phase, batch_size=N) for phase in ("a", "b")]
    for each in loaders:
        next(iter(each))
    for loader in loaders:
        for batch in loader:
            optimizer.zero_grad()
            account.weigh(driven(batch)).backward()
            optimizer.step()


def looks_at_the_first_again(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    """Between two phases, as for statistics of a layer."""
    loaders = [account.loader(Numbers(), phase, batch_size=N) for phase in ("a", "b")]
    for loader in loaders:
        for batch in loader:
            optimizer.zero_grad()
            account.weigh(driven(batch)).backward()
            optimizer.step()
        if loader is loaders[0]:
            assert sum(map(len, loader)) == len(next(iter(loader)))


def trains_the_first_again(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    looks_at_the_first_again(account, model, driven, optimizer)
    account.weigh(driven(next(iter(account.loader(Numbers(), "a", batch_size=N))))).backward()


def never_trains_the_second(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    first, second = [account.loader(Numbers(), phase, batch_size=N) for phase in ("a", "b")]
    next(iter(second))
    for batch in first:
        account.weigh(driven(batch)).backward()
        optimizer.step()


TWO = {"a": 1, "b": 1}
LOOKS: list[tuple[Body, dict[str, int], int]] = [
    (trains_what_it_looks_at, {"train": 2}, 3),
    (looks_at_both, TWO, 0),
    (looks_at_the_first_again, TWO, 0),
    (trains_the_first_again, TWO, 2),
    (never_trains_the_second, TWO, 3),
]


def test_a_look_is_no_more_than_that(subtests: pytest.Subtests) -> None:
    of_each = in_turn(2, ((trains, body, plan) for body, plan, _ in LOOKS))
    for (body, plan, code), found in zip(LOOKS, of_each, strict=True):
        with subtests.test(body.__name__):
            assert [each["code"] for each in found] == [code, code], found[0]["err"]
            if not code:
                assert verified(found).holds and found[0]["result"] == [len(plan)] * N


def puts_weights_back(
    when: str, account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD
) -> None:
    """After a stop within an epoch, after one at its end, or before that."""
    loader = account.loader(Numbers(), batch_size=2)
    for number, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        account.weigh(driven(batch)).backward()
        optimizer.step()
        if number == 2:
            best = model.rows.detach().clone()
        if number == 5 and when == "within":
            account.stop("patience")
    if when == "after":
        account.stop("patience")
    with torch.no_grad():
        model.rows.copy_(best)
    if when == "before":
        account.stop("patience")


def test_weights_that_are_put_back_around_a_stop_are_said(subtests: pytest.Subtests) -> None:
    bodies = [functools.partial(puts_weights_back, when) for when in ("within", "after", "before")]
    assert_ends(subtests, 2, [((trains, body, {"train": 2}), 3, "account.replaced(reason)") for body in bodies])


def raises_in_the_last_batch(account: Account, model: Times, driven: DistributedDataParallel, optimizer: SGD) -> None:
    loader = account.loader(Numbers(), batch_size=SIZE)
    for number, batch in enumerate(loader, 1):
        if number == len(loader) and account.rank == 1:
            raise ValueError("of the program")
        optimizer.zero_grad()
        account.weigh(driven(batch)).backward()
        optimizer.step()


def ended_within(body: Body) -> tuple[float, str]:
    began = time.monotonic()
    try:
        trains(body, {"train": 2})
    except Exception as error:
        return time.monotonic() - began, str(error)
    return time.monotonic() - began, ""


def test_a_rank_that_raises_in_the_last_batch_keeps_nobody_waiting() -> None:
    for each in run(2, ended_within, raises_in_the_last_batch):
        seconds, sentence = each["result"]
        assert "of the program" in sentence and seconds < 60
