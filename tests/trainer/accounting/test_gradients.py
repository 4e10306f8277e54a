"""A batch counts once a named optimizer steps with the gradients of its loss. What is cleared before is dropped."""

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from accounts import alone, in_turn, run
from loops import SIZE, Loop, N, Numbers, Times, in_the_weights
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from torchtally import Account


def plain(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    for batch in loader:
        optimizer.zero_grad()
        account.weigh(model(batch)).backward()
        optimizer.step()


def accumulates(
    account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer, remainder: bool = True
) -> None:
    """The remainder is stepped after the loop."""
    for number, batch in enumerate(loader, 1):
        account.weigh(model(batch)).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    if remainder:
        optimizer.step()
        optimizer.zero_grad()


def adds_losses_up(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    """One backward pass for several batches."""
    total = sum(account.weigh(model(batch)) for batch in loader)
    assert isinstance(total, Tensor)
    total.backward()
    optimizer.step()
    optimizer.zero_grad()


def joins_batches(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    batches = [*loader]
    account.weigh(model(torch.cat(batches)), *batches).backward()
    optimizer.step()
    optimizer.zero_grad()


def fetches_ahead(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        ahead = next(batches, None)
        optimizer.zero_grad()
        account.weigh(model(batch), batch).backward()
        optimizer.step()
        batch = ahead


def prefetches_copies(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """As prefetchers for GPUs do: the loop receives copies, after the next batch has been fetched."""

    def copies() -> Iterator[Tensor]:
        kept = None
        for batch in loader:
            ahead = batch.clone()
            if kept is not None:
                yield kept
            kept = ahead
        if kept is not None:
            yield kept

    for batch in copies():
        account.weigh(model(batch), (batch,)).backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_in_closures(account: Account, loader: Iterable[Tensor], model: Times, _: torch.optim.Optimizer) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=3)
    account.optimizer(optimizer)
    for batch in loader:

        def closure(batch: Tensor = batch) -> float:
            optimizer.zero_grad()
            loss = account.weigh((model.rows[batch] - 1).square().sum())
            loss.backward()
            return float(loss)

        optimizer.step(closure)


def steps_in_the_backward_pass(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    account.optimizer(optimizer)

    def steps(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    model.rows.register_post_accumulate_grad_hook(steps)
    for batch in loader:
        account.weigh(model(batch)).backward()


def ascends_before(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    """Sharpness-aware: the first of two backward passes only moves the weights to where the second one is made."""
    for batch in loader:
        account.weigh(model(batch)).backward()
        before = model.rows.detach().clone()
        with torch.no_grad():
            model.rows += 0.1
        optimizer.zero_grad()
        account.weigh(model(batch)).backward()
        with torch.no_grad():
            model.rows.copy_(before)
        optimizer.step()
        optimizer.zero_grad()


def tries_again(account: Account, loader: Iterable[Tensor], model: Times, optimizer: torch.optim.Optimizer) -> None:
    """A batch whose gradients are cleared has another backward pass."""
    for batch in loader:
        for _ in range(2):
            optimizer.zero_grad()
            account.weigh(model(batch)).backward()
        optimizer.step()


def clears_both_models(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """As a GAN does: the generator's loss leaves gradients in the discriminator, which the next batch clears."""
    other = Times()
    others = torch.optim.SGD(other.parameters(), lr=1)
    account.optimizer(others)
    for batch in loader:
        model.zero_grad()
        account.weigh(model(batch)).backward()
        optimizer.step()
        other.zero_grad()
        account.weigh(model(batch) + other(batch)).backward()
        others.step()


def writes_gradients_itself(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        [model.rows.grad] = torch.autograd.grad(account.weigh(model(batch)), [model.rows])
        optimizer.step()
        model.zero_grad()


def adds_gradients_itself(
    account: Account,
    loader: Iterable[Tensor],
    model: Times,
    optimizer: Any,
    adds: bool = True,
    says: bool = True,
) -> None:
    """Those of two batches; without `adds`, a mistake: those of the second are written over those of the first."""
    batches: list[Tensor] = []
    for batch in loader:
        batches.append(batch)
        [found] = torch.autograd.grad(account.weigh(model(batch)), [model.rows])
        model.rows.grad = found if model.rows.grad is None or not adds else model.rows.grad + found
        if len(batches) == 2:
            if adds and says:
                account.holds(*batches)
            optimizer.step()
            optimizer.zero_grad()
            batches.clear()


def has_losses_of_zero(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """The gradient of every second batch is zero, as that of a hinge loss can be."""
    previous = torch.zeros(0, dtype=torch.int64)
    for number, batch in enumerate(loader):
        account.weigh((model(batch) * (number % 2)).clamp(max=1)).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.rows[previous] += 1  # so that the test finds each sample once
        previous = batch


def adds_a_loss_of_no_weight(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """As one that is ramped up: the batch has another one, in the same backward pass or in one before."""
    for number, batch in enumerate(loader):
        part = account.weigh(model(batch)) * 0
        if number % 2:
            part.backward()
        whole = account.weigh(model(batch), batch)
        (whole if number % 2 else whole + part).backward()
        optimizer.step()
        optimizer.zero_grad()


def keeps_gradients_of_zeros(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        model.zero_grad(set_to_none=False)
        account.weigh(model(batch)).backward()
        optimizer.step()


def zeroes_their_data(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()
        assert model.rows.grad is not None
        model.rows.grad.data.zero_()


def moves_aside(
    account: Account,
    loader: Iterable[Tensor],
    model: Times,
    optimizer: Any,
    clears: str = "optimizer",
    overflows_at: int | None = None,
    steps_at: int = 5,
) -> None:
    """Of two batches, as to clip those of each: gradients that are not finite are left out."""
    kept, batches = torch.zeros_like(model.rows), []

    def step() -> None:
        if clears == "in place":
            assert model.rows.grad is not None
            model.rows.grad.copy_(kept)
        else:
            model.rows.grad = kept.clone()
        account.holds(*batches)
        optimizer.step()
        optimizer.zero_grad(set_to_none=clears != "in place")

    for number, batch in enumerate(loader):
        loss = account.weigh(model(batch))
        (loss * float("inf") if number == overflows_at else loss).backward()
        assert model.rows.grad is not None
        if model.rows.grad.isfinite().all():
            kept += model.rows.grad.clamp(-1, 1)
            batches.append(batch)
        if clears == "hand":
            model.rows.grad = None
        else:
            optimizer.zero_grad(set_to_none=clears != "in place")
        if len(batches) == 2 or number == steps_at:
            step()
            kept, batches = torch.zeros_like(model.rows), []
    if batches:
        step()


def adds_gradients_of_two_losses(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """Takes the gradients of each loss out, as PCGrad does."""
    for batch in loader:
        loss, found = account.weigh(model(batch)), []
        for part in (loss / 4, loss * 3 / 4):
            optimizer.zero_grad()
            part.backward(retain_graph=True)
            assert model.rows.grad is not None
            found.append(model.rows.grad.clone())
        optimizer.zero_grad()
        model.rows.grad = sum(found, torch.zeros(N))
        account.holds(batch)
        optimizer.step()


def steps_copies_in_float32(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """The gradients of two batches are copied to those of the parameters that are stepped."""
    driven, batches = Times(), []
    for number, batch in enumerate(loader):
        account.weigh(driven(batch)).backward()
        batches.append(batch)
        if number % 2:
            assert driven.rows.grad is not None
            model.rows.grad = driven.rows.grad.clone()
            account.holds(*batches)
            optimizer.step()
            optimizer.zero_grad()
            driven.zero_grad()
            batches.clear()


RIGHT = [
    plain,
    moves_aside,
    *(functools.partial(moves_aside, clears=each) for each in ("in place", "hand")),
    functools.partial(moves_aside, steps_at=4),
    adds_gradients_of_two_losses,
    steps_copies_in_float32,
    accumulates,
    adds_losses_up,
    joins_batches,
    fetches_ahead,
    prefetches_copies,
    steps_in_the_backward_pass,
    ascends_before,
    tries_again,
    clears_both_models,
    writes_gradients_itself,
    adds_gradients_itself,
    has_losses_of_zero,
    adds_a_loss_of_no_weight,
    keeps_gradients_of_zeros,
    zeroes_their_data,
]


def overflows(
    account: Account,
    loader: Iterable[Tensor],
    model: Times,
    optimizer: torch.optim.Optimizer,
    at: int = 2,
    every: int = 1,
    clears: str = "after",
) -> None:
    """The loss of batch `at` is infinite. Gradients are cleared after each step, in place, or before the next one."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, batch in enumerate(loader):
        if clears == "before":
            optimizer.zero_grad()
        loss = account.weigh(model(batch))
        scaler.scale(loss * float("inf") if number == at else loss).backward()
        if number % every == every - 1:
            scaler.step(optimizer)
            scaler.update()
            if clears != "before":
                optimizer.zero_grad(set_to_none=clears == "after")


def overflows_in_a_fused_step(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1, fused=True)
    account.optimizer(optimizer)
    overflows(account, loader, model, optimizer)


def multiplies_by_zero(
    account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any, before: bool = False
) -> None:
    for number, batch in enumerate(loader):
        loss, weight = model(batch), torch.tensor(number % 2)
        (account.weigh(torch.where(weight > 0, loss, 0) / 2 * 2) if before else account.weigh(loss) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()


def trains_the_worst_of_two(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    losses: list[Tensor] = []
    for batch in loader:
        losses.append(account.weigh(model(batch)) + 1000 * len(losses))
        if len(losses) == 2:
            torch.stack(losses).max().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.clear()


def clears_too_early(
    account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any, in_place: bool = False
) -> None:
    """A mistake: of two accumulated batches, the first one's gradients are cleared."""
    for number, batch in enumerate(loader):
        model.zero_grad(set_to_none=not in_place)
        account.weigh(model(batch)).backward()
        if number % 2:
            optimizer.step()


def clears_the_remainder(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    accumulates(account, loader, model, optimizer, remainder=False)
    model.zero_grad()


def leaves_a_batch_out(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for number, batch in enumerate(loader):
        if number != 2:
            account.weigh(model(batch), batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def never_steps(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()


def steps_another_model(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    """The optimizer that steps has gradients, which are not those of the batches."""
    other = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    account.optimizer(optimizer)
    other(torch.ones(1)).backward()
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()


def forgets_one_of_two_steps(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    """The first and the last batch train another model; the optimizer of this one never steps."""
    other = Times()
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    account.optimizer(optimizer)
    for number, batch in enumerate(loader, 1):
        account.weigh((other if number in (1, 6) else model)(batch)).backward()
    optimizer.step()


def discards_gradients(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """Those of every second batch, while the gradients of the one before are clipped."""
    for number, batch in enumerate(loader):
        loss = account.weigh(model(batch))
        if number % 2:
            torch.autograd.grad(loss, [model.rows])
            nn.utils.clip_grad_norm_(model.parameters(), 99.0)
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss.backward()


def weighs_nothing(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()


def trains_no_named_model(clears: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
    model, other = Times(), Times()
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), "train", batch_size=SIZE)
        for _ in account.epochs():
            for batch in loader:
                account.weigh(model(batch)).backward()
                optimizer.step()
                clears(model, optimizer)


def clears_another_model() -> None:
    trains_no_named_model(lambda model, _: model.zero_grad())


def clears_the_optimizer_of_another_model() -> None:
    trains_no_named_model(lambda _, optimizer: optimizer.zero_grad())


def clears_all(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """The optimizer that steps is not the one that is named."""
    other = torch.optim.SGD(model.parameters(), lr=1)
    for batch in loader:
        account.weigh(model(batch)).backward()
        other.step()
        optimizer.zero_grad()


def clears_before_each_step(
    account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any, in_place: bool
) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.zero_grad(set_to_none=not in_place)
        optimizer.step()


def trains_another_loss(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """The gradients that the optimizer steps with are those of a loss that is not weighed."""
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.zero_grad()
        model(torch.arange(N)).backward()
        optimizer.step()


def puts_back_without_a_word(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    """It is not known which batches are in the gradients: a loop can leave out some that it has moved aside."""
    for batch in loader:
        account.weigh(model(batch)).backward()
        assert model.rows.grad is not None
        kept = model.rows.grad.clone()
        optimizer.zero_grad()
        model.rows.grad = kept
        optimizer.step()


def holds_nothing(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.zero_grad()
        account.holds(batch)


def holds_what_counts(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()
        account.holds(batch)


def holds_what_has_no_loss(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    for batch in loader:
        model(batch).backward()
        account.holds(batch)


def holds_what_is_dropped(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    first, *batches = [*loader]
    account.weigh(model(first), first).backward()
    optimizer.zero_grad()
    account.weigh(model(batches[0]), batches[0]).backward()
    optimizer.step()
    account.holds(first)


def trains_on_a_skipped_batch(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for number, batch in enumerate(loader):
        if number == 2:
            account.skip("the loss is too high")
        account.weigh(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def skips_after_the_backward_pass(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for number, batch in enumerate(loader):
        account.weigh(model(batch)).backward()
        if number == 2:
            account.skip("the gradients are too large")
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


def leaves_the_epoch(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for number, batch in enumerate(loader, 1):
        account.weigh(model(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 4:
            break


def names_no_batch(account: Account, loader: Iterable[Tensor], model: Times, _: Any) -> None:
    batches = iter(loader)
    first = next(batches)
    next(batches)
    account.weigh(model(first))


def commits_as_well(account: Account, loader: Iterable[Tensor], model: Times, optimizer: Any) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()
        account.commit()


def names_it_late() -> None:
    model = Times()
    with Account(task="t", plan={"train": 2}) as account:
        for batch in account.loader(Numbers(), "train", batch_size=SIZE):
            account.optimizer(torch.optim.SGD(model.parameters(), lr=1))
            account.weigh(model(batch)).backward()


def names_none() -> None:
    model = Times()
    with Account(task="t", plan={"train": 2}) as account:
        for batch in account.loader(Numbers(), "train", batch_size=SIZE):
            account.weigh(model(batch)).backward()


def names_equal_copies_twice(inputs_first: bool = False) -> list[int]:
    """Two losses of each batch name copies; those of the labels are equal to those of the next one."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted: list[int] = []
    with Account(task="t", epochs=1) as account:
        account.optimizer(optimizer)
        loader = account.loader(TensorDataset(torch.arange(8.0)[:, None], torch.ones(8)), batch_size=2)
        copies = ((inputs.clone(), labels.clone()) for inputs, labels in loader)
        kept = next(copies)
        for ahead in copies:
            optimizer.zero_grad()
            inputs, labels = kept
            named = inputs if inputs_first else labels
            (account.weigh(model(inputs).mean(), named) + account.weigh(model(inputs).sum(), labels)).backward()
            optimizer.step()
            counted += [each.counted for each in account._phases.open.all]
            kept = ahead
        optimizer.zero_grad()
        account.weigh(model(kept[0]).mean(), kept[1]).backward()
        optimizer.step()
    return counted


def trains_a_copy_for_each_batch() -> int:
    """The number of optimizers that are left."""
    model, left = nn.Linear(1, 1), list[Any]()
    with Account(task="t", epochs=1) as account:
        account.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for (inputs,) in account.loader(TensorDataset(torch.ones(16, 1)), batch_size=2):
            inner = copy.deepcopy(model)
            optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
            account.optimizer(optimizer)
            left.append(weakref.ref(optimizer))
            account.weigh(inner(inputs).mean()).backward()
            optimizer.step()
    del inner, optimizer
    return sum(each() is not None for each in left)


def test_an_optimizer_of_one_batch_is_let_go() -> None:
    found = alone(trains_a_copy_for_each_batch)
    assert (found["code"], found["result"]) == (0, 0), found["err"]


def names_one_that_leaves_out_its_first_steps() -> None:
    with Account("t", epochs=1) as account:
        account.optimizer(ZeroRedundancyOptimizer(Times().parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=1.0))


def weighs_a_number() -> None:
    model = Times()
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(torch.optim.SGD(model.parameters(), lr=1))
        for batch in account.loader(Numbers(), "train", batch_size=SIZE):
            account.weigh(model(batch).item())


def names_a_model() -> None:
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(Times())  # type: ignore[arg-type]


DROPPED: list[tuple[Loop, int]] = [
    *((loop, 0) for loop in RIGHT),
    (overflows, 8),
    (overflows_in_a_fused_step, 8),
    (functools.partial(moves_aside, overflows_at=2), 8),
    (functools.partial(overflows, at=5, clears="in place"), 4),
    (functools.partial(overflows, at=5, clears="before"), 4),  # those of the last batch are there when the epoch ends
    (functools.partial(overflows, every=2, clears="in place"), 16),
    (clears_too_early, 24),
    (clears_the_remainder, 12),
    (multiplies_by_zero, 24),
    (functools.partial(multiplies_by_zero, before=True), 24),
    (trains_the_worst_of_two, 24),
    (functools.partial(clears_too_early, in_place=True), 24),
    (skips_after_the_backward_pass, 2 * SIZE),
]
LOST: list[tuple[Loop | Callable[[], None], int]] = [
    (leaves_a_batch_out, 4),
    (functools.partial(accumulates, remainder=False), 6),
    (never_steps, N),
    (steps_another_model, N),
    (forgets_one_of_two_steps, N - 6),
    (discards_gradients, 10),
    (leaves_the_epoch, 6),
    (functools.partial(adds_gradients_itself, adds=False), N),
    (functools.partial(adds_gradients_itself, says=False), N),
    (weighs_nothing, N),
    (clears_another_model, N),
    (clears_the_optimizer_of_another_model, N),
]
REFUSED: list[tuple[Callable[..., Any], int, str]] = [
    (clears_all, 3, "all of its gradients were cleared before a step"),
    *(
        (functools.partial(clears_before_each_step, in_place=each), 3, "all of its gradients were cleared")
        for each in (True, False)
    ),
    (trains_another_loss, 3, "all of its gradients were cleared before a step"),
    (puts_back_without_a_word, 3, "all of its gradients were cleared before a step"),
    (holds_what_counts, 2, "train epoch 1, step 1 of 6: holds() must receive batches that do not count yet"),
    (holds_what_has_no_loss, 2, "step 1 of 6: holds() must receive a batch with a loss; this one has no loss"),
    (holds_what_is_dropped, 2, "this one is dropped"),
    (holds_nothing, 2, "holds() must come once its gradients are there, and none are"),
    (trains_on_a_skipped_batch, 2, "an optimizer has stepped with the gradients of a batch that counts as dropped"),
    (leaves_the_epoch, 3, "the loop left the epoch in step 4 of 6"),
    (names_no_batch, 2, "weigh() must name the batches of this loss"),
    (commits_as_well, 2, "commit() is for loops that name no optimizer"),
    (names_it_late, 2, "account.optimizer() must come before the first batch"),
    (names_none, 2, "weigh() needs account.optimizer(optimizer) before the first batch"),
    (names_one_that_leaves_out_its_first_steps, 2, "with overlap_with_ddp=True leaves out its first steps"),
    (weighs_a_number, 2, "weigh() takes a loss as a tensor, before its backward pass, not a float"),
    (names_a_model, 2, "account.optimizer() takes a torch.optim.Optimizer, not a Times"),
]
ALONE = (
    names_it_late,
    names_none,
    names_one_that_leaves_out_its_first_steps,
    names_a_model,
    weighs_a_number,
    clears_another_model,
    clears_the_optimizer_of_another_model,
)


def ended(loops: list[Any]) -> Iterator[dict[str, Any]]:
    for [found] in in_turn(1, ((loop,) if loop in ALONE else (in_the_weights, loop) for loop in loops)):
        yield found


def test_a_sample_counts_once_in_each_epoch_unless_it_is_cleared_before_a_step(subtests: pytest.Subtests) -> None:
    for (loop, dropped), found in zip(DROPPED, ended([loop for loop, _ in DROPPED]), strict=True):
        with subtests.test(str(loop)):
            times, said = found["result"]
            assert (found["code"], said, sum(times)) == (0, dropped, 2 * N - dropped), found["err"]
            assert dropped or times == [2] * N


@pytest.mark.parametrize("inputs_first", [False, True])
def test_a_second_loss_of_a_copy_is_not_one_of_the_next_batch(inputs_first: bool) -> None:
    found = alone(names_equal_copies_twice, inputs_first)
    assert (found["code"], found["result"]) == (0, [1, 2, 3]), found["err"]


def test_a_step_with_a_closure_counts() -> None:
    found = alone(in_the_weights, steps_in_closures)
    assert (found["code"], found["result"][1]) == (0, 0), found["err"]


def test_what_no_step_has_used_is_lost(subtests: pytest.Subtests) -> None:
    for (loop, lost), found in zip(LOST, ended([loop for loop, _ in LOST]), strict=True):
        with subtests.test(str(loop)):
            assert found["code"] == 3, found["err"]
            assert found["lines"][-1]["lost"] == lost, found["err"]


def test_a_loop_that_contradicts_itself_is_told_so(subtests: pytest.Subtests) -> None:
    for (loop, code, said), found in zip(REFUSED, ended([loop for loop, *_ in REFUSED]), strict=True):
        with subtests.test(str(loop)):
            assert found["code"] == code, found["err"]
            assert said in found["err"]


def parameters_after(world: int, rows: int, wrap: Callable[[nn.Module], nn.Module]) -> list[float]:
    """The parameters after 2 epochs of a mean loss, with so many samples of a rank in a step."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 3), torch.randint(3, (N,)))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5, momentum=0.9)
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(optimizer)
        loader = account.loader(data, "train", batch_size=rows)
        for _ in account.epochs():
            for inputs, labels in loader:
                assert len(inputs)  # a mean over no samples is not a number
                optimizer.zero_grad()
                account.weigh(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
    whole = (getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters())
    return torch.cat([each.detach().flatten() for each in whole]).tolist()


def accumulates_apart(wrap: Callable[[nn.Module], nn.Module], quiet: bool) -> int:
    """The samples of two epochs that are dropped; if `quiet`, only every second backward pass communicates."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    wrapped: Any = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    data = TensorDataset(torch.randn(24, 3), torch.randint(3, (24,)))
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(optimizer)
        loader = account.loader(data, "train", batch_size=2)
        for _ in account.epochs():
            for number, (inputs, labels) in enumerate(loader):
                waits = number % 2 == 0
                with wrapped.no_sync() if waits and quiet and hasattr(wrapped, "no_sync") else contextlib.nullcontext():
                    if hasattr(wrapped, "set_requires_gradient_sync"):
                        wrapped.set_requires_gradient_sync(not (waits and quiet))
                    account.weigh(cross_entropy(wrapped(inputs), labels)).backward()
                if not waits:
                    optimizer.step()
                    optimizer.zero_grad()
    assert account.last_line
    dropped: int = account.last_line["phases"]["train"].get("dropped", 0)
    return dropped


def in_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def in_fsdp(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


def as_it_is(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("wrap", [in_ddp, in_fsdp])
def test_gradients_that_are_accumulated_with_or_without_communication_count(
    wrap: Callable[[nn.Module], nn.Module], quiet: bool
) -> None:
    for each in run(2, accumulates_apart, wrap, quiet):
        assert (each["code"], each["result"]) == (0, 0), each["err"]


def parameters_normalized(rows: int) -> list[float]:
    """The parameters after an epoch of a loss that the loop itself divides by the samples of all ranks."""
    torch.manual_seed(0)
    world = torch.distributed.get_world_size()
    data = TensorDataset(torch.randn(N, 3), torch.randint(3, (N,)))
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    wrapped = DistributedDataParallel(model)
    with Account(task="t", epochs=1) as account:
        account.optimizer(optimizer)
        for inputs, labels in account.loader(data, batch_size=rows):
            samples = torch.tensor(len(inputs))
            torch.distributed.all_reduce(samples)
            optimizer.zero_grad()
            loss = cross_entropy(wrapped(inputs), labels, reduction="sum") * world / samples
            account.weigh(loss, normalized=True).backward()
            optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def test_a_loss_that_is_normalized_over_all_ranks_is_not_scaled_again() -> None:
    """The last step has 10 samples: 4, 3, and 3."""
    [whole] = run(1, parameters_normalized, 12)
    for each in run(3, parameters_normalized, 4):
        assert each["code"] == 0, each["err"]
        assert each["result"] == pytest.approx(whole["result"], abs=1e-6)


@pytest.mark.parametrize("wrap", [in_ddp, in_fsdp])
def test_a_mean_loss_is_that_of_one_process_on_the_whole_batch(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """The last step has 1 sample, so ranks 1 and 2 have none."""
    [whole] = run(1, parameters_after, 1, 21, as_it_is)
    for each in run(3, parameters_after, 3, 7, wrap):
        assert each["code"] == 0, each["err"]
        assert each["result"] == pytest.approx(whole["result"], abs=1e-6)
