"""Programs as people write them, on two ranks: no guard takes one for wrong, and none has a caveat."""

import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import in_turn
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau
from torch.utils.data import TensorDataset

from torchtally import Account

N = 26
Step = Callable[[Account, Tensor], None]


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def trains(
    step: Step,
    *optimizers: Optimizer,
    replicated: bool = True,
    before: Callable[[Account, int], None] = lambda account, epoch: None,
    after: Callable[[], None] = lambda: None,
) -> Any:
    with Account("t", epochs=2) as account:
        for each in optimizers:
            account.optimizer(each, replicated=replicated)
        generator = torch.Generator().manual_seed(1)
        loader = account.loader(TensorDataset(torch.randn(N, 8, generator=generator)), batch_size=4)
        for epoch in account.epochs():
            before(account, epoch)
            for (inputs,) in loader:
                step(account, inputs)
            after()
    return account.last_line


def stepping(model: nn.Module, optimizer: Optimizer, then: Callable[[], None] = lambda: None) -> Step:
    def step(account: Account, inputs: Tensor) -> None:
        optimizer.zero_grad()
        account.weigh(model(inputs).float().square().mean()).backward()
        optimizer.step()
        then()

    return step


def plays_two() -> Any:
    maker, judge = DistributedDataParallel(a_model()), DistributedDataParallel(a_model())
    makers, judges = Adam(maker.parameters()), Adam(judge.parameters())

    def step(account: Account, inputs: Tensor) -> None:
        made = maker(inputs)
        judges.zero_grad()
        account.weigh((judge(inputs) - judge(made.detach())).mean()).backward()
        judges.step()
        makers.zero_grad()
        account.weigh(judge(made).mean()).backward()
        makers.step()

    return trains(step, judges, makers)


def translates_both_ways() -> Any:
    """The loss of the makers, of batches of two phases, reaches both judges, each of which steps in one phase."""
    made, judges = [DistributedDataParallel(a_model()) for _ in range(2)], [a_model() for _ in range(2)]
    driven = [DistributedDataParallel(each) for each in judges]
    makers = Adam([parameter for each in made for parameter in each.parameters()])
    optimizers = [Adam(each.parameters()) for each in judges]
    with Account("t", plan={"train": 2, "other": 2}) as account:
        for optimizer in (makers, *optimizers):
            account.optimizer(optimizer)
        loaders = [account.loader(TensorDataset(torch.randn(N, 8)), phase, batch_size=4) for phase in account.plan]
        for _ in account.epochs():
            for batches in zip(*loaders, strict=False):
                makers.zero_grad()
                losses = [judges[1 - at](made[at](inputs)).square().mean() for at, [inputs] in enumerate(batches)]
                account.weigh(losses[0] + losses[1], *batches).backward()
                makers.step()
                for [inputs], judge, optimizer in zip(batches, driven, optimizers, strict=True):
                    optimizer.zero_grad()
                    account.weigh(judge(inputs).mean(), inputs).backward()
                    optimizer.step()
    return account.last_line


def makes_an_optimizer_in_each_epoch_and_unfreezes() -> Any:
    model = a_model()
    now: list[Step] = []

    def before(account: Account, epoch: int) -> None:
        model[0].requires_grad_(epoch == 2)
        model[4].requires_grad_(epoch == 1)
        optimizer = Adam([each for each in model.parameters() if each.requires_grad])
        account.optimizer(optimizer)
        now[:] = [stepping(DistributedDataParallel(model), optimizer)]

    return trains(lambda account, inputs: now[0](account, inputs), before=before)


class Adapted(nn.Module):
    """A frozen model, and a small product beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = a_model().requires_grad_(False)
        self.down, self.up = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(inputs) + self.up(self.down(inputs))
        return output


def adapts() -> Any:
    model = DistributedDataParallel(Adapted())
    return trains(
        stepping(model, optimizer := AdamW([each for each in model.parameters() if each.requires_grad])), optimizer
    )


class Ascending(Optimizer):
    """Sharpness-aware, as its well-known implementation: it replaces the data of parameters."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.inner = SGD(self.param_groups, lr=0.01)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        before = [(each, each.data.clone()) for group in self.param_groups for each in group["params"]]
        for each, _ in before:
            each.add_(each.grad, alpha=0.05)
        self.zero_grad()
        torch.enable_grad()(closure)()
        for each, values in before:
            each.data = values
        self.inner.step()
        self.zero_grad()


def ascends() -> Any:
    model = DistributedDataParallel(a_model())
    optimizer = Ascending(model.parameters())

    def step(account: Account, inputs: Tensor) -> None:
        def closure() -> None:
            account.weigh(model(inputs).square().mean()).backward()

        closure()
        optimizer.step(closure)

    return trains(step, optimizer)


class LooksAhead(Optimizer):
    """Moves the weights back half of the way of eight steps, the last of which is that of the run."""

    def __init__(self, within: Optimizer) -> None:
        super().__init__(within.param_groups, {})
        self.optimizer, self.param_groups, self.made = within, within.param_groups, 0
        self.slow = [each.detach().clone() for each in within.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        self.made += 1
        for slow, each in zip(self.slow, self.param_groups[0]["params"], strict=True):
            if self.made % 8 == 0:
                each.copy_(slow.lerp_(each, 0.5))


def looks_ahead() -> Any:
    model = DistributedDataParallel(a_model())
    optimizer = LooksAhead(AdamW(model.parameters()))
    return trains(stepping(model, optimizer), optimizer)


def warms_up_from_zero() -> Any:
    model = DistributedDataParallel(a_model())
    optimizer = AdamW(model.parameters())
    schedule = LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    return trains(stepping(model, optimizer, schedule.step), optimizer)


def schedules_between_epochs() -> Any:
    model = DistributedDataParallel(a_model())
    optimizer = AdamW(model.parameters())
    first, second = CosineAnnealingLR(optimizer, 2), ReduceLROnPlateau(optimizer)

    def after() -> None:
        first.step()
        second.step(1.0)

    return trains(stepping(model, optimizer), optimizer, after=after)


def repeats_closures() -> Any:
    model = DistributedDataParallel(a_model())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(account: Account, inputs: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = account.weigh(model(inputs).square().mean())
            loss.backward()
            return loss

        optimizer.step(closure)

    return trains(step, optimizer)


def shards_in_a_small_type() -> Any:
    model = fully_shard(a_model(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return trains(stepping(model, optimizer := AdamW(model.parameters())), optimizer)


def averages_beside() -> Any:
    model = DistributedDataParallel(a_model())
    average, optimizer = copy.deepcopy(model.module), AdamW(model.parameters())

    def then() -> None:
        with torch.no_grad():
            for each, own in zip(average.parameters(), model.parameters(), strict=True):
                each.lerp_(own, 0.1)

    return trains(stepping(model, optimizer, then), optimizer)


def has_an_outer_optimizer() -> Any:
    """DiLoCo: two steps of each rank, and one with the mean of their changes. It resumes from a state."""
    model, shared = a_model(), a_model()
    saved: Any = None
    for start in range(2):
        optimizer, outer = AdamW(model.parameters()), SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        steps = 0
        with contextlib.suppress(InterruptedError), Account("t", epochs=2) as account:
            account.optimizer(optimizer, replicated=False)
            loader = account.loader(TensorDataset(torch.ones(N, 8)), batch_size=4)
            if start:
                account.load_state_dict(saved[0])
                model.load_state_dict(saved[1])
                shared.load_state_dict(saved[1])
            for _ in account.epochs():
                for (inputs,) in loader:
                    stepping(model, optimizer)(account, inputs)
                    steps += 1
                    if steps % 2 == 0:
                        for each, own in zip(shared.parameters(), model.parameters(), strict=True):
                            each.grad = each.data - own.data
                            dist.all_reduce(each.grad)
                            each.grad /= dist.get_world_size()
                        outer.step()
                        model.load_state_dict(shared.state_dict())
                        if not start and steps == 2:
                            saved = account.state_dict(), copy.deepcopy(model.state_dict())
                            raise InterruptedError
    return account.last_line


RIGHT = [
    plays_two,
    translates_both_ways,
    makes_an_optimizer_in_each_epoch_and_unfreezes,
    adapts,
    ascends,
    looks_ahead,
    warms_up_from_zero,
    schedules_between_epochs,
    repeats_closures,
    shards_in_a_small_type,
    averages_beside,
    has_an_outer_optimizer,
]
SAID = {has_an_outer_optimizer: ["weights not compared between ranks: replicated=False"]}


def test_programs_as_people_write_them_are_proved_without_an_unasked_caveat(subtests: pytest.Subtests) -> None:
    for body, of_ranks in zip(RIGHT, in_turn(2, ((body,) for body in RIGHT)), strict=True):
        for found in of_ranks:
            with subtests.test(body.__name__):
                assert found["code"] == 0, found["err"]
                line, train = found["result"], found["result"]["phases"]["train"]
                assert (train["consumed"], train.get("dropped")) == (2 * N, None)
                assert line.get("caveats") == SAID.get(body)
