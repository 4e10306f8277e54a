"""Ranks that train models of their own, and a resume without the weights, get no ✓."""

import contextlib
import copy
import functools
import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import in_turn, run
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from torchtally import Account
from torchtally.accounting.reporting import meeting
from torchtally.checkpoints.hashing import hash_of

APART = "train models of their own"
N = 24
LONG = 80  # ten steps of two ranks


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data(n: int = N) -> TensorDataset:
    return TensorDataset(torch.randn(n, 4, generator=torch.Generator().manual_seed(1)), torch.arange(n))


def averages(tensors: list[Tensor]) -> None:
    for each in tensors:
        dist.all_reduce(each)
        each /= dist.get_world_size()


def trains(
    model: nn.Module,
    *optimizers: torch.optim.Optimizer,
    epochs: int = 1,
    dataset: TensorDataset | None = None,
    group: dist.ProcessGroup | None = None,
    replicated: bool = True,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    with Account(task="t", plan={"train": epochs}, group=group) as account:
        for each in optimizers:
            account.optimizer(each, replicated=replicated)
        loader = account.loader(dataset or data(), "train", batch_size=4)
        for _ in account.epochs():
            for inputs, *_ in loader:
                for each in optimizers:
                    each.zero_grad()
                account.weigh(model(inputs).square().mean()).backward()
                before_step()
                for each in optimizers:
                    each.step()
                after_step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


# Ranks that train apart.


def each_its_own() -> None:
    model = a_model()
    trains(model, adam(model))


def each_its_own_head() -> None:
    """The frozen layer is equal on all ranks, and no step changes it."""
    model = a_model()
    model[0].requires_grad_(False)
    trains(model, adam(model))


def each_its_own_layer_that_is_given() -> None:
    """The optimizer has a layer that never has a gradient."""
    model = a_model()
    unused = nn.Linear(3, 3)
    trains(model, torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=0.01))


class Off(nn.Linear):
    """A layer whose bias is zero, and so is its gradient."""

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.bias is not None
        return nn.functional.linear(inputs, self.weight) + 0 * self.bias


def each_its_own_with_a_layer_that_is_off() -> None:
    model = a_model()
    off = Off(2, 2)
    nn.init.zeros_(off.bias)
    both = nn.Sequential(model, off)
    trains(both, adam(both))


def each_its_own_that_is_wrapped_in_vain() -> None:
    """DDP averages no gradient of a call of the module in it."""
    model = a_model()
    DistributedDataParallel(model)
    with DistributedDataParallel(model).no_sync():
        trains(model, adam(model))


def each_its_own_of_bfloat16() -> None:
    """Steps that are too small for the type leave weights of 1 as they are."""
    model = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64, bias=False)).to(torch.bfloat16)
    torch.manual_seed(0)
    nn.init.normal_(model[1].weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    features = torch.randn(N, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    trains(model, optimizer, dataset=TensorDataset(features))


def each_its_own_with_a_tensor_beside() -> None:
    """As the temperature of an actor that is no parameter of a module."""
    model = a_model()
    beside = torch.ones(1, requires_grad=True)
    trains(model, torch.optim.AdamW([*model.parameters(), beside], lr=0.01))


def each_its_own_by_steps_of_one_size() -> None:
    """A small bias can be equal by chance."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def signs() -> None:
        for each in model.parameters():
            each.grad.sign_()  # type: ignore[union-attr]
        model.bias.grad.fill_(1.0)  # type: ignore[union-attr]

    trains(model, torch.optim.SGD(model.parameters(), lr=0.01), before_step=signs)


def each_its_own_of_two_optimizers() -> None:
    model = a_model()
    trains(model, adam(model[0]), torch.optim.SGD(model[2].parameters(), lr=0.1))


class Passing(nn.Module):
    """A program calls the module in DDP, and not DDP itself."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = DistributedDataParallel(a_model())

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.wrapped.module(inputs)
        return output


def each_its_own_past_ddp() -> None:
    model = Passing()
    trains(model, adam(model))


def each_its_own_without_sync() -> None:
    model = DistributedDataParallel(a_model())
    with model.no_sync():
        trains(model, adam(model))


class Tensors(nn.Module):
    """A function of tensors that no module has."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.of = {"w": torch.randn(4, 16, generator=generator).requires_grad_()}

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.of["w"]


def each_its_own_of_tensors() -> None:
    model = Tensors()
    trains(model, torch.optim.AdamW(model.of.values(), lr=0.01))


def sends(model: nn.Module) -> None:
    for each in model.parameters():
        dist.broadcast(each.data, 0)


def each_its_own_that_gets_the_weights_of_one() -> None:
    """What the other ranks have trained is nowhere."""
    model = a_model()
    trains(model, adam(model), after_step=lambda: sends(model))


def each_its_own_whose_mean_is_not_stated() -> None:
    model = a_model()
    trains(model, adam(model), after_step=lambda: averages([each.data for each in model.parameters()]))


def peers_that_have_other_data() -> None:
    """Two ranks that share a layer are no group of the account, so each gets samples of its own."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = a_model()
    parallelize_module(model, mesh["tp"], {"2": ColwiseParallel(output_layouts=Replicate())})
    trains(model, adam(model))


MODELS_OF_THEIR_OWN = [
    each_its_own,
    each_its_own_past_ddp,
    each_its_own_without_sync,
    each_its_own_of_tensors,
    each_its_own_that_gets_the_weights_of_one,
    each_its_own_whose_mean_is_not_stated,
    peers_that_have_other_data,
    each_its_own_head,
    each_its_own_layer_that_is_given,
    each_its_own_with_a_layer_that_is_off,
    each_its_own_that_is_wrapped_in_vain,
    each_its_own_of_two_optimizers,
    each_its_own_of_bfloat16,
    each_its_own_with_a_tensor_beside,
    each_its_own_by_steps_of_one_size,
]


def test_ranks_that_train_models_of_their_own_are_refused(subtests: pytest.Subtests) -> None:
    of_each = in_turn(2, ((body,) for body in MODELS_OF_THEIR_OWN))
    for body, of_ranks in zip(MODELS_OF_THEIR_OWN, of_each, strict=True):
        for found in of_ranks:
            with subtests.test(body.__name__):
                assert found["code"] == 2
                assert f"train epoch 1 is not proved: ranks 0 and 1 {APART}" in found["err"]
                assert not [line for line in found["lines"] if line["rank"] == "all"]


def apart_from_the_second_epoch_on() -> None:
    model = a_model()
    steps = iter(range(100))
    trains(
        model,
        adam(model),
        epochs=2,
        before_step=lambda: averages([each.grad for each in model.parameters()]) if next(steps) < 3 else None,
    )


def test_each_epoch_is_judged() -> None:
    for found in run(2, apart_from_the_second_epoch_on):
        assert found["code"] == 2
        assert "train epoch 2 is not proved" in found["err"]


def apart_for_long() -> None:
    meeting.Meeting.due = property(lambda _: True)  # type: ignore[method-assign,assignment]
    model = a_model()
    trains(model, adam(model), dataset=data(LONG), before_step=dist.barrier)


def test_a_warning_comes_before_the_end_of_the_epoch() -> None:
    first, other = run(2, apart_for_long)
    assert (first["code"], other["code"]) == (2, 2)
    assert (first["err"].count(APART), other["err"].count(APART)) == (2, 1)


def only_rank_0_steps() -> None:
    """DDP averages the gradients, and rank 0 sends the weights."""
    model = DistributedDataParallel(a_model())
    optimizer = adam(model)
    with Account("t", epochs=1) as account:
        account.optimizer(optimizer)
        for inputs, _ in account.loader(data(), batch_size=4):
            account.weigh(model(inputs).square().mean()).backward()
            if dist.get_rank() == 0:
                optimizer.step()
            optimizer.zero_grad()
            sends(model)


def test_a_rank_that_makes_no_step_is_named() -> None:
    for found in run(2, only_rank_0_steps):
        assert found["code"] == 2
        assert "rank 1 has made no step with its samples, and rank 0 has" in found["err"]


# Ranks that train one model.


def with_ddp() -> None:
    model = DistributedDataParallel(a_model())
    trains(model, adam(model))


def by_hand() -> None:
    model = a_model()
    trains(model, adam(model), before_step=lambda: averages([each.grad for each in model.parameters()]))


def with_the_mean_of_the_weights() -> None:
    """As local SGD does, which averages now and then."""
    model = a_model()
    steps = cycle([False, False, True])
    trains(
        model,
        adam(model),
        epochs=2,
        replicated=False,
        after_step=lambda: averages([each.data for each in model.parameters()]) if next(steps) else None,
    )


def with_an_expert_of_each_rank() -> None:
    model = a_model()
    expert = nn.Linear(4, 4)
    nn.init.normal_(expert.weight, std=dist.get_rank() + 1.0)
    both = nn.Sequential(expert, model)
    trains(both, adam(both), before_step=lambda: averages([each.grad for each in model.parameters()]))


def with_experts_of_the_same_size() -> None:
    """There are more experts than parameters that are compared, and the shared ones are larger."""
    torch.manual_seed(0)
    before, after = nn.Linear(4, 8), nn.Linear(8, 16)
    experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(40))
    for each in experts:
        nn.init.normal_(each.weight, std=dist.get_rank() + 1.0)  # type: ignore[arg-type]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.experts, self.after = before, experts, after

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = before(inputs)
            output: Tensor = after(sum(each(hidden) for each in experts))
            return output

    model, shared = Model(), [*before.parameters(), *after.parameters()]
    trains(model, adam(model), before_step=lambda: averages([each.grad for each in shared]))


def with_an_inner_loop() -> None:
    """What an optimizer steps is written to before each step, and the weights are others."""
    model, inner = a_model(), a_model()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    with Account("t", epochs=1) as account:
        account.optimizer(optimizer, replicated=False)
        for inputs, _ in account.loader(data(), batch_size=4):
            inner.load_state_dict(model.state_dict())
            for _ in range(3):
                optimizer.zero_grad()
                account.weigh(inner(inputs).square().mean()).backward()
                optimizer.step()
            with torch.no_grad():
                for each, stepped in zip(model.parameters(), inner.parameters(), strict=True):
                    change = stepped - each
                    dist.all_reduce(change)
                    each.add_(change, alpha=0.25)


def with_weights_of_rank_0_at_first() -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 16)
    sends(model)
    trains(model, adam(model), before_step=lambda: averages([each.grad for each in model.parameters()]))


class Averaging(torch.optim.SGD):
    """It averages the gradients in its step, as optimizers with a state of parts do."""

    def step(self, closure: Any = None) -> Any:
        averages([each.grad for group in self.param_groups for each in group["params"]])
        return super().step(closure)


def with_an_optimizer_that_averages() -> None:
    model = a_model()
    trains(model, Averaging(model.parameters(), lr=0.01))


def with_a_model_of_each_rank() -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 16)
    trains(model, adam(model), replicated=False)


def with_experts_that_are_sharded() -> None:
    """The experts are parts of one tensor, and the rest is averaged."""
    mesh = init_device_mesh("cpu", (2,))
    model = a_model()
    experts = nn.Module()
    experts.rows = nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)]))
    both = nn.ModuleList([model, experts])

    class Both(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            rows: Any = experts.rows
            output: Tensor = model(inputs + rows.to_local().sum(0))
            return output

    trains(Both(), adam(both), before_step=lambda: averages([each.grad for each in model.parameters()]))


def with_local_sgd() -> None:
    model = DistributedDataParallel(a_model())
    state = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=100)
    model.register_comm_hook(state, post_localSGD_hook)
    wrapper = PostLocalSGDOptimizer(adam(model), PeriodicModelAverager(period=2))
    with Account("t", epochs=1) as account:
        account.optimizer(wrapper, replicated=False)
        for inputs, _ in account.loader(data(), batch_size=4):
            wrapper.zero_grad()
            account.weigh(model(inputs).square().mean()).backward()
            wrapper.step()


def with_a_state_of_parts() -> None:
    model = DistributedDataParallel(a_model())
    trains(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


def with_fsdp2() -> None:
    model = fully_shard(a_model())
    trains(model, adam(model))


def with_fsdp1() -> None:
    model = FullyShardedDataParallel(a_model(), device_id=torch.device("cpu"))
    trains(model, adam(model))


def with_fsdp1_and_original_parameters() -> None:
    model = FullyShardedDataParallel(a_model(), device_id=torch.device("cpu"), use_orig_params=True)
    trains(model, adam(model))


def with_other_instructions() -> None:
    """What differs in the last bits cannot be compared."""
    torch.set_num_threads(1 + dist.get_rank())
    try:
        each_its_own()
    finally:
        torch.set_num_threads(1)


ONE_MODEL = [
    with_ddp,
    by_hand,
    with_the_mean_of_the_weights,
    with_an_expert_of_each_rank,
    with_experts_of_the_same_size,
    with_an_inner_loop,
    with_weights_of_rank_0_at_first,
    with_an_optimizer_that_averages,
    with_a_model_of_each_rank,
    with_experts_that_are_sharded,
    with_local_sgd,
    with_a_state_of_parts,
    with_fsdp2,
    with_fsdp1,
    with_fsdp1_and_original_parameters,
    with_other_instructions,
]


def test_ranks_that_train_one_model_are_proved(subtests: pytest.Subtests) -> None:
    for body, of_ranks in zip(ONE_MODEL, in_turn(2, ((body,) for body in ONE_MODEL)), strict=True):
        for found in of_ranks:
            with subtests.test(body.__name__):
                assert found["code"] == 0, found["err"]
                assert APART not in found["err"]


# A resume.

Saved = dict[str, Any]


class Killed(Exception):
    pass


Load = Callable[[Saved], tuple[nn.Module, list[nn.Parameter]]]


def goes_on(saved: Saved | None, load: Load, until: int = 0) -> Saved:
    kept: Saved = {}
    with contextlib.suppress(Killed), Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(data(), "train", batch_size=4)
        if saved:
            account.load_state_dict(saved["account"])
        model, parameters = load(saved["model"] if saved else a_model().state_dict())
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        account.optimizer(optimizer)
        for number, (inputs, _) in enumerate(loader, 1):
            optimizer.zero_grad()
            account.weigh(model(inputs.to(parameters[0].dtype)).square().mean()).backward()
            optimizer.step()
            if number == until:
                kept = {"account": account.state_dict(), "model": copy.deepcopy(model.state_dict())}
                raise Killed
    return kept


def nothing(_: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    model = a_model()
    return model, [*model.parameters()]


def other_names(saved: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    """As where they were saved of a model in DDP."""
    model = a_model()
    model.load_state_dict({f"module.{name}": each for name, each in saved.items()}, strict=False)
    return model, [*model.parameters()]


def everything(saved: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    model = a_model()
    model.load_state_dict(saved)
    return model, [*model.parameters()]


def a_new_head(saved: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    model, _ = everything(saved)
    model[2] = nn.Linear(8, 3)
    return model, [*model.parameters()]


def a_new_head_alone(saved: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    """What was trained is frozen."""
    model, _ = everything(saved)
    model.requires_grad_(False)
    head = nn.Linear(2, 3)
    return nn.Sequential(model, head), [*head.parameters()]


def another_precision(saved: Saved) -> tuple[nn.Module, list[nn.Parameter]]:
    model, _ = everything(saved)
    model.double()
    return model, [*model.parameters()]


def resumes(load: Load, **changes: Any) -> None:
    saved = goes_on(None, everything, 3)
    values = json.loads(saved["account"]["torchtally"])
    assert values.pop("weights")
    if changes:
        saved["account"] = {"torchtally": json.dumps({**values, **changes})}
    goes_on(saved, load)


NO_WEIGHTS = "no parameter of an optimizer has a value that was saved with it"
DAMAGED = "the state of the account cannot be loaded: no state has this: Expected `array`"
RESUMES: list[tuple[Load, dict[str, Any], int, str]] = [
    (nothing, {}, 2, NO_WEIGHTS),
    (other_names, {}, 2, NO_WEIGHTS),
    (everything, {}, 0, ""),
    (a_new_head, {}, 0, ""),
    (a_new_head_alone, {}, 0, ""),
    (another_precision, {}, 0, ""),
    (nothing, {"v": 1}, 0, ""),  # it knows no weights
    *((everything, {"weights": damaged}, 2, DAMAGED) for damaged in (None, {}, [["float32", 1]], [1])),
]


def test_a_state_is_taken_with_its_weights_alone(subtests: pytest.Subtests) -> None:
    of_each = in_turn(1, ((functools.partial(resumes, **changes), load) for load, changes, *_ in RESUMES))
    for (load, changes, code, sentence), [found] in zip(RESUMES, of_each, strict=True):
        with subtests.test(f"{load.__name__} {changes}"):
            assert found["code"] == code, found["err"]
            assert sentence in found["err"]
            assert bool(found["lines"]) == (code == 0)


def stages() -> set[str]:
    """Ranks of a pipeline, whose states are the same."""
    group = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "pp"))["dp"].get_group()
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 2)
    optimizer = adam(model)
    states = set()
    with Account(task="t", plan={"train": 1}, group=group) as account:
        account.optimizer(optimizer)
        for inputs, _ in account.loader(data(), batch_size=4):
            optimizer.zero_grad()
            account.weigh(model(inputs).square().mean()).backward()
            optimizer.step()
            states.add(account.state_dict()["torchtally"])
    return states


def test_a_state_is_the_same_on_all_stages_of_a_pipeline() -> None:
    first, other = run(2, stages)
    assert first["code"] == other["code"] == 0, first["err"]
    assert first["result"] == other["result"]


def has_a_stage_apart() -> None:
    """Two ranks for each of two stages, of which the second is not averaged."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    group, stage = mesh["dp"].get_group(), mesh["pp"].get_local_rank()
    torch.manual_seed(stage)
    model = nn.Linear(4, 2)

    def adds() -> None:
        for each in model.parameters() if stage == 0 else []:
            dist.all_reduce(each.grad, group=group)

    trains(model, adam(model), group=group, before_step=adds)


def test_each_stage_of_a_pipeline_is_compared() -> None:
    for found in run(4, has_a_stage_apart):
        assert found["code"] == 2
        assert f"ranks 1 and 3 {APART}" in found["err"]


# Hashes.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (64, 33)])
def test_a_hash_is_of_the_values_alone(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape).to(dtype)
    apart = torch.cat([torch.zeros(1).to(dtype), values.reshape(-1)])[1:].view(shape)  # on no boundary of a word
    strided = torch.stack([values, values], -1)[..., 0]
    assert hash_of(values) == hash_of(apart) == hash_of(strided) == hash_of(nn.Buffer(values))


def test_a_hash_knows_places_and_signs() -> None:
    """Rows that have changed places are other weights."""
    rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    others = [rows[[1, 0, *range(2, 8)]], rows.flip(0), -rows, rows * torch.tensor([-1.0, 1.0] * 8), rows.roll(1)]
    assert len({hash_of(each) for each in (rows, *others)}) == 6


def test_hashes_of_small_types_are_different() -> None:
    """Of values of two bytes, most pairs out of a thousand have the same hash of two bytes."""
    assert len({hash_of(torch.randn(32, 32).to(torch.bfloat16)) for _ in range(1000)}) == 1000
