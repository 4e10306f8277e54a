"""The private names of PyTorch and of torchmetrics: a release that changes one is named, with the name."""

import ctypes
import inspect
import multiprocessing
import pkgutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.utils import store as elastic_store
from torch.utils.data import DataLoader

from torchtally import compat, compat_torchmetrics


def changed(package: str, name: str, how: str = "is gone") -> str:
    return f"{package} {version(package)} has changed a private name that torchtally/compat*.py uses: {name} {how}"


def resolved(name: str) -> Any:
    """What the name, as in compat.PRIVATE, stands for."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(changed("torch", name))


@pytest.mark.parametrize("name", compat.PRIVATE)
def test_torch_has_the_name(name: str) -> None:
    resolved(name)


@pytest.mark.parametrize("name", compat.OF_PYTHON)
def test_python_has_the_name(name: str) -> None:
    assert callable(pkgutil.resolve_name(name))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("torch.distributed._functional_collectives:all_to_all_single_autograd", 4),
        ("torch.distributed.distributed_c10d:_get_default_store", 0),
        ("torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler._popen", 3),
    ],
)
def test_torch_takes_the_same_number_of_arguments(name: str, parameters: int) -> None:
    found = [
        each
        for each in inspect.signature(resolved(name)).parameters.values()
        if each.default is inspect.Parameter.empty
    ]
    assert parameters - 1 <= len(found) <= parameters, changed("torch", name, f"takes {len(found)} arguments")


def test_torch_builds_a_rank_of_what_the_handler_returns() -> None:
    """The agent looks for the handler in this module, and reads these attributes of it."""
    name = "torch.distributed.elastic.multiprocessing.api"
    source = inspect.getsource(resolved(f"{name}:SubprocessContext"))
    assert "get_subprocess_handler(" in source, changed("torch", f"{name}:get_subprocess_handler", "is not called")
    handler = "torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler"
    text = inspect.getsource(resolved(handler))
    for part in ("self._stdout", "self._stderr", "self._popen("):
        assert part in text, changed("torch", handler, f"has no {part}")


def test_the_key_opens_the_exit_barrier() -> None:
    key, prefix = (
        compat.exit_barrier_key(),
        resolved("torch.distributed.elastic.agent.server.api:_TERMINAL_STATE_SYNC_ID"),
    )
    store = dist.HashStore()
    elastic_store.barrier(store, 1, prefix, barrier_timeout=5)
    assert store.check([key]), changed("torch", key, "is not what its exit barrier waits for")
    waiting = dist.HashStore()
    waiting.set(key, "")
    elastic_store.barrier(waiting, 2, prefix, barrier_timeout=5)  # another agent's arrival is not waited for


def test_torchs_library_initialises_its_log() -> None:
    (library,) = Path(torch.__file__).parent.glob(compat.LIBC10)
    assert hasattr(ctypes.CDLL(str(library)), compat.INIT_LOGGING), changed("torch", "c10::initLogging()")


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LazyBatchNorm1d]
)
def test_torchs_batch_norm_layers_have_one_base(layer: type[nn.Module]) -> None:
    made = layer() if layer is nn.LazyBatchNorm1d else layer(3)  # type: ignore[call-arg]
    assert compat.has_batch_norm(nn.Sequential(made)), changed("torch", f"_BatchNorm, no base of {layer.__name__}")
    assert not compat.has_batch_norm(nn.Sequential(nn.LayerNorm(3)))


def test_the_workers_of_a_loader_end() -> None:
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    assert hasattr(loader, "_iterator"), changed("torch", "DataLoader._iterator")
    assert [*map(int, loader)] == [0, 1, 2, 3]
    compat.end_workers(loader)
    assert not multiprocessing.active_children()
    assert [*map(int, loader)] == [0, 1, 2, 3], changed("torch", "DataLoader._iterator", "is not made anew")
    compat.end_workers(loader)


def test_rpc_takes_its_transports() -> None:
    try:
        options = compat.rpc_over_tcp(7)
    except TypeError:
        pytest.fail(changed("torch", "TensorPipeRpcBackendOptions(_transports=, _channels=)"))
    assert options.rpc_timeout == 7


def exchanged(rank: int, world: int, store: dist.Store) -> tuple[list[float], list[float]]:
    """The rows that this rank receives, and the gradient of those that it gives: rank r gives r + 1 to each."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    rows = torch.full((world, 1), rank + 1.0, requires_grad=True)
    received = compat.all_to_all(rows, [1] * world, [1] * world, dist.group.WORLD)
    (received * (rank + 1)).sum().backward()
    stored = compat.default_store()
    stored.set(f"mine/{rank}", "")
    stored.wait([f"mine/{each}" for each in range(world)])
    dist.destroy_process_group()
    assert rows.grad is not None
    return received.flatten().tolist(), rows.grad.flatten().tolist()


def test_rows_are_exchanged_with_their_gradients_over_the_default_group() -> None:
    found = ranks.run(2, exchanged)
    assert found == [([1, 2], [1, 2])] * 2, changed("torch", "all_to_all_single_autograd", f"gives {found}")


def test_torchmetrics_has_the_attributes() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.MeanMetric()
    for name in compat_torchmetrics.PRIVATE:
        assert name in vars(metric), changed("torchmetrics", f"Metric.{name}")
    assert compat_torchmetrics.with_state(metric) == [metric]
    names = dict(compat_torchmetrics.reductions(metric)).keys()
    assert names == metric.metric_state.keys(), changed("torchmetrics", "Metric._reductions", "has other keys")


def test_torchmetrics_computes_again_once_its_value_is_forgotten() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.SumMetric()
    metric.update(torch.tensor(2.0))
    assert metric.compute() == 2
    metric.sum_value = torch.tensor(5.0)
    compat_torchmetrics.forget_value(metric)
    assert metric.compute() == 5, changed("torchmetrics", "Metric._computed", "is not the value that it keeps")


class OfAProgram(Tensor):
    pass


@pytest.mark.parametrize("kind", [Tensor, OfAProgram])
def test_a_loss_is_hooked_as_its_own_method_does_it(kind: type[Tensor]) -> None:
    """Beside hooks of the program, before and after it, and once for each call."""
    calls: list[str] = []

    def noted(name: str, factor: float) -> Any:
        return lambda gradient: calls.append(name) or gradient * factor

    leaf = torch.ones(2, requires_grad=True)
    loss = (leaf * leaf).sum().as_subclass(kind)
    loss.register_hook(noted("first", 2))
    compat.hook(loss, noted("ours", 3))
    compat.hook(loss, noted("ours again", 5))
    loss.register_hook(noted("last", 7))
    loss.backward()
    assert calls == ["first", "ours", "ours again", "last"], changed(
        "torch", "Tensor._backward_hooks", "works otherwise"
    )
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0 * 2 * 3 * 5 * 7] * 2
