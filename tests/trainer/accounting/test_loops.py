"""Loops as people write them: the proof agrees with the weights, which tell how often each sample is in them."""

import functools
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import alone, code_of, in_turn, run
from loops import SIZE, Loop, N, Numbers, Times, in_the_weights
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from torchtally import Account
from torchtally.errors import Ending

Batches = Iterable[Tensor]


def train(account: Account, model: nn.Module, optimizer: Optimizer, batch: Tensor) -> None:
    optimizer.zero_grad()
    account.weigh(model(batch), batch).backward()
    optimizer.step()


def fills_a_queue(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """A thread fetches, and can be at the end of the epoch before the first batch is trained."""
    filled: queue.Queue[Tensor | None] = queue.Queue()

    def fill() -> None:
        for batch in loader:
            filled.put(batch)
        filled.put(None)

    thread = threading.Thread(target=fill)
    thread.start()
    while (batch := filled.get()) is not None:
        train(account, model, optimizer, batch)
    thread.join()


def schedules(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for batch in loader:
        train(account, model, optimizer, batch)
        scheduler.step()


def makes_an_optimizer_each_epoch(account: Account, loader: Batches, model: Times, _: SGD) -> None:
    optimizer = SGD(model.parameters(), lr=1)
    account.optimizer(optimizer)
    for batch in loader:
        train(account, model, optimizer, batch)


def trains_two_models_in_turn(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """The second model and its optimizer are made after the first batch."""
    other = Times()
    others = SGD(other.parameters(), lr=1)
    for number, batch in enumerate(loader):
        if number == 1:
            account.optimizer(others)
        train(account, *((other, others) if number % 2 else (model, optimizer)), batch)
    with torch.no_grad():
        model.rows += other.rows


def plays_against_another(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """Two optimizers, each with a backward pass through both models."""
    other = Times()
    others = SGD(other.parameters(), lr=1)
    account.optimizer(others)
    for batch in loader:
        loss = account.weigh(model(batch) + other(batch))
        others.zero_grad()
        loss.backward(retain_graph=True)
        others.step()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sums_gradients_of_two_tasks(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """The gradients of each task are moved aside, and their sum is put back."""
    for batch in loader:
        aside = []
        for part in (0.25, 0.75):
            optimizer.zero_grad()
            account.weigh(model(batch) * part).backward()
            assert model.rows.grad is not None
            aside.append(model.rows.grad.clone())
        model.rows.grad = aside[0] + aside[1]
        optimizer.step()


def copies_gradients(account: Account, loader: Batches, _: Times, optimizer: SGD) -> None:
    """The optimizer has copies of the parameters, as those in float32 of a model in bfloat16."""
    model = Times()
    [own] = optimizer.param_groups[0]["params"]
    own.grad = torch.zeros(N)
    for batch in loader:
        model.zero_grad()
        account.weigh(model(batch)).backward()
        own.grad.copy_(model.rows.grad)
        optimizer.step()
        model.rows.data.copy_(own)


class Ascending(Optimizer):
    """Sharpness-aware: its own optimizer makes the step."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})
        self.inner = SGD(self.param_groups, lr=1)
        [self.rows] = self.param_groups[0]["params"]

    def first_step(self) -> None:
        self.before = self.rows.detach().clone()
        self.rows.data += 0.1
        self.zero_grad()

    def second_step(self) -> None:
        self.rows.data.copy_(self.before)
        self.inner.step()
        self.zero_grad()


def ascends_with_an_optimizer(account: Account, loader: Batches, model: Times, _: SGD) -> None:
    optimizer = Ascending(model.parameters())
    account.optimizer(optimizer)
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.first_step()
        account.weigh(model(batch)).backward()
        optimizer.second_step()


def averages_weights(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    wrapper = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=2))
    account.optimizer(wrapper)
    for batch in loader:
        train(account, model, wrapper, batch)


def scales_and_clips(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, batch in enumerate(loader, 1):
        scaler.scale(account.weigh(model(batch))).backward()
        if number % 4 == 0 or number == 6:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 99.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def differentiates_gradients(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    for batch in loader:
        optimizer.zero_grad()
        account.weigh(model(batch) + 0 * (model.rows**3).sum()).backward(create_graph=True)
        gradients = model.rows.grad
        assert gradients is not None
        torch.autograd.grad(gradients.sum(), [model.rows])
        model.rows.grad = gradients.detach()
        optimizer.step()


def computes_activations_again(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    for number, batch in enumerate(loader):
        loss = checkpoint(lambda rows, batch=batch: -rows[batch].sum(), model.rows * 1, use_reentrant=number % 2 > 0)
        optimizer.zero_grad()
        account.weigh(loss).backward()
        optimizer.step()


def compiles_the_step(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    compiled = torch.compile(functools.partial(train, account, model, optimizer), backend="aot_eager")
    for batch in loader:
        compiled(batch)


def clears_in_place(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()
        model.rows.grad = torch.zeros_like(model.rows)


def skips(clears: bool, account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    for number, batch in enumerate(loader):
        account.weigh(model(batch)).backward()
        if number == 2:
            account.skip("the gradient is too large")
        else:
            optimizer.step()
        if number != 2 or clears:
            optimizer.zero_grad()


skips_and_clears, skips_and_keeps_the_gradients = functools.partial(skips, True), functools.partial(skips, False)


def leaves_the_last_step_out(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """Two optimizers have the parameters, and one of them clears the gradients."""
    account.optimizer(SGD(model.parameters(), lr=1))
    for number, batch in enumerate(loader, 1):
        account.weigh(model(batch)).backward()
        if number != 6:
            optimizer.step()
        optimizer.zero_grad()


def clears(how: Callable[[Times], object], account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """A mistake: the gradients are cleared between the backward pass and the step."""
    for batch in loader:
        account.weigh(model(batch)).backward()
        how(model)
        optimizer.step()


clears_the_model = functools.partial(clears, Times.zero_grad)
clears_the_model_in_place = functools.partial(clears, functools.partial(Times.zero_grad, set_to_none=False))


def zeroes_the_data(model: Times) -> None:
    assert model.rows.grad is not None
    model.rows.grad.data.zero_()


clears_the_data = functools.partial(clears, zeroes_the_data)


def learns_nothing_at_first(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    """As with a hinge: a right loss whose gradients are all 0."""
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        account.weigh(model(batch).clamp(min=1e9 if number < 4 else None, max=1e9)).backward()
        optimizer.step()


def never_clears(account: Account, loader: Batches, model: Times, optimizer: SGD) -> None:
    for batch in loader:
        account.weigh(model(batch)).backward()
        optimizer.step()


RIGHT = [
    fills_a_queue,
    schedules,
    makes_an_optimizer_each_epoch,
    trains_two_models_in_turn,
    plays_against_another,
    sums_gradients_of_two_tasks,
    copies_gradients,
    ascends_with_an_optimizer,
    averages_weights,
    scales_and_clips,
    differentiates_gradients,
    computes_activations_again,
    compiles_the_step,
    clears_in_place,
]
WRONG = [
    (skips_and_keeps_the_gradients, 2, "an optimizer has stepped with the gradients of a batch that counts as dropped"),
    (clears_the_model, 3, "all of its gradients were cleared before a step"),
    (clears_the_model_in_place, 3, "all of its gradients were cleared before a step"),
    (clears_the_data, 3, "all of its gradients were cleared before a step"),
    (never_clears, 2, "an optimizer has stepped with the gradients of batches that count already"),
]


PROVED: list[tuple[Loop, int]] = [*((each, 0) for each in RIGHT), (skips_and_clears, 8), (leaves_the_last_step_out, 4)]


def test_a_loop_is_proved_to_have_in_the_weights_what_the_weights_have(subtests: pytest.Subtests) -> None:
    of_each = in_turn(1, ((in_the_weights, loop) for loop, _ in PROVED))
    for (loop, dropped), [found] in zip(PROVED, of_each, strict=True):
        with subtests.test(str(loop)):
            assert found["code"] == 0, found["err"]
            times, said = found["result"]
            assert (said, sum(times), max(times)) == (dropped, 2 * N - dropped, 2)


def weights_after(loop: Loop) -> tuple[list[int], int]:
    """The same for a loop that is not proved, with its exit code."""
    model = Times()
    with pytest.raises(Ending) as end:
        in_the_weights(loop, model)
    return model.times, code_of(end.value)


def test_a_loop_that_the_weights_disprove_is_not_proved(subtests: pytest.Subtests) -> None:
    of_each = in_turn(1, ((weights_after, loop) for loop, *_ in WRONG))
    for (loop, code, said), [found] in zip(WRONG, of_each, strict=True):
        with subtests.test(str(loop)):
            times, ended = found["result"]
            assert times != [2] * N
            assert ended == code
            assert said in found["err"]


def test_batches_whose_gradients_are_0_count() -> None:
    found = alone(in_the_weights, learns_nothing_at_first)
    assert found["code"] == 0, found["err"]
    times, said = found["result"]
    assert said == 0 and 0 < sum(times) < 2 * N


def from_one_iterator() -> list[int]:
    model = Times()
    optimizer = SGD(model.parameters(), lr=1)
    with Account("t", epochs=2) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), batch_size=SIZE)
        batches = (batch for _ in account.epochs() for batch in loader)
        for _ in range(2 * len(loader)):
            train(account, model, optimizer, next(batches))
    return model.times


def test_a_loop_over_one_iterator_of_all_epochs_is_proved() -> None:
    found = alone(from_one_iterator)
    assert (found["code"], found["result"]) == (0, [2] * N), found["err"]


class Meanwhile(torch.autograd.Function):
    """Calls a function in the middle of the backward pass."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, call: Callable[[], object]) -> Tensor:
        ctx.call = call
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.call()
        return gradient, None


def fetches_beside(ahead: int) -> list[int]:
    """A thread fetches batches of all epochs, each in the middle of a backward pass."""
    model, world, fetched = Times(), dist.get_world_size(), []
    optimizer = SGD(model.parameters(), lr=world)  # of the mean of all ranks
    net = nn.parallel.DistributedDataParallel(model)
    with Account("t", epochs=2) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), batch_size=SIZE)
        batches = (batch for _ in account.epochs() for batch in loader)

        def fetch(count: int = 1) -> None:
            with ThreadPoolExecutor(1) as beside:
                fetched.extend(beside.submit(lambda: [*islice(batches, count)]).result())

        fetch(ahead)
        while fetched:
            batch = fetched.pop(0)
            optimizer.zero_grad()
            account.weigh(Meanwhile.apply(net(batch), fetch), batch).backward()
            optimizer.step()
    return model.times


@pytest.mark.parametrize(("world", "ahead"), [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_a_thread_that_fetches_in_a_backward_pass_takes_none_for_failed(world: int, ahead: int) -> None:
    for found in run(world, fetches_beside, ahead):
        assert (found["code"], found["result"]) == (0, [2] * N), found["err"]
        assert '"dropped"' not in found["out"]


def test_a_thread_that_begins_the_next_epoch_too_early_is_refused_with_several_ranks() -> None:
    """Its collective calls could meet those of the thread that trains."""
    for found in run(2, fetches_beside, 2):
        assert found["code"] == 2, found["err"]
        assert "fetch batches in the thread that trains, and read ahead by the loader's num_workers" in found["err"]


def trains_in_a_thread() -> list[int]:
    """After a look at the first batch, as some libraries run a training."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(looks_and_trains).result()


def looks_and_trains() -> list[int]:
    model, world = Times(), dist.get_world_size()
    optimizer = SGD(model.parameters(), lr=world)
    net = nn.parallel.DistributedDataParallel(model)
    with Account("t", epochs=2) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), batch_size=SIZE)
        next(iter(loader))
        for _ in account.epochs():
            for batch in loader:
                train(account, net, optimizer, batch)
    return model.times


def test_a_training_in_a_thread_may_look_at_the_first_batch() -> None:
    for found in run(2, trains_in_a_thread):
        assert (found["code"], found["result"]) == (0, [2] * N), found["err"]
