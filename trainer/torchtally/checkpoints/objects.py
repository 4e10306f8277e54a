"""The objects that a checkpoint holds: models, their optimizers, and others that have a state.

States of models and optimizers are those of PyTorch's distributed checkpoint, which any number of ranks can load. Any
other object's state is one opaque value, that of rank 0, unless it is sharded as well.
"""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from torchtally import exchange
from torchtally.checkpoints.hashing import hash_of
from torchtally.errors import Refused

State = dict[str, Any]
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")  # of DDP, torch.compile, activation checkpointing
_FSDP1 = "FullyShardedDataParallel"  # by its name, as its import takes time
MODEL = "model"  # the kind of all models
Hashes = dict[tuple[str, int, torch.dtype], int]


class Objects:
    """The objects of a checkpoint, by their names."""

    def __init__(self, objects: Mapping[str, Any]):
        if not objects:
            raise Refused("checkpoints: objects={} must name at least one, for example {'model': model}")
        self._objects = dict(objects)
        self._models = [each for each in objects.values() if isinstance(each, nn.Module)]
        self._model_of: dict[str, nn.Module] = {}  # by the name of its optimizer
        for name, each in self._objects.items():
            if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
                raise Refused(
                    f"checkpoints: {name!r} is a {type(each).__name__}, which must have state_dict() and "
                    "load_state_dict()"
                )
            if isinstance(each, nn.Module) and any(type(part).__name__ == _FSDP1 for part in each.modules()):
                raise Refused(f"checkpoints: {name!r} has a {_FSDP1}: shard it with FSDP2's fully_shard")
            if isinstance(each, ZeroRedundancyOptimizer):
                raise Refused(
                    f"checkpoints: {name!r} is a ZeroRedundancyOptimizer, of whose state each rank has only a part: "
                    "shard the model and its optimizer with FSDP2's fully_shard, or use a plain optimizer"
                )
            if isinstance(each, torch.optim.LBFGS | torch.optim.SparseAdam):
                raise Refused(
                    f"checkpoints: {name!r} is a {type(each).__name__}, whose state PyTorch's distributed checkpoint "
                    "cannot load: use another optimizer, or save the account's state_dict() in a checkpoint of your own"
                )
            if isinstance(each, Optimizer):
                if sum(not group["params"] for group in each.param_groups) > 1:
                    raise Refused(f"checkpoints: {name!r} has two groups without a parameter: leave them out")
                # A model can have a length, and be false.
                if (model := self._having(each)) is not None:
                    self._model_of[name] = model
                elif _sharded([group["params"] for group in each.param_groups]):
                    raise Refused(f"checkpoints: {name!r} has sharded parameters: give the model that has them as well")
                elif self._steps_others(each):
                    raise Refused(
                        f"checkpoints: {name!r} steps parameters of which no object has a state: give their model as "
                        "well, or a resume would begin with new ones"
                    )

    @property
    def device(self) -> torch.device:
        """Where the first model is, or else the CPU."""
        return next((each.device for each in self.parameters), torch.device("cpu"))

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each object: what must be the same in a checkpoint that is loaded."""
        return {name: self._kind(each) for name, each in self._objects.items()}

    def differ(self, saved: Mapping[str, str]) -> str | None:
        """What a checkpoint with objects of these kinds has, unless they are those of these objects."""
        if saved == self.kinds:
            return None
        return f"holds {saved} and the objects are {self.kinds}: pass those that it was saved with"

    def state(self, whole: bool = True, *, loads: bool = False) -> State:
        """The states of all objects, which share memory with them. A call of all ranks.

        If not `whole`, without what only rank 0 saves: opaque values, and buffers, which DDP takes from rank 0. If it
        `loads`, with those of optimizers that have made no step.
        """
        state = {name: self._state(name, each, loads) for name, each in self._objects.items()}
        if not whole:
            for name in self._model_of:
                del state[name]["param_groups"]
            for name, each in self._objects.items():
                if isinstance(each, nn.Module):
                    state[name] = _of_all_ranks(each, state[name])
            state = {name: each for name, each in state.items() if not isinstance(each, bytes)}
        return state

    def compared(self, state: State) -> list[tuple[str, str]]:
        """What in a state of the models must be equal on all ranks, by model and name, beside what is sharded."""
        models = [name for name, each in self._objects.items() if isinstance(each, nn.Module)]
        return [(name, key) for name in models for key in _of_all_ranks(self._objects[name], state[name])]

    def hashes(self) -> Hashes:
        """Hashes of the values of the models' parameters. Not a call of all ranks."""
        models = ((name, each) for name, each in self._objects.items() if isinstance(each, nn.Module))
        return {(name, id(of), of.dtype): hash_of(local(of)) for name, each in models for of in each.parameters()}

    def replaced(self, hashes: Hashes) -> str | None:
        """The name of a model that has had other values of a parameter. Not a call of all ranks."""
        now = self.hashes()
        return next((key[0] for key, value in hashes.items() if now.get(key, value) != value), None)

    def load(self, reader: FileSystemReader, group: dist.ProcessGroup) -> None:
        """Load all objects. A call of all ranks. Raises CheckpointException, and Refused for other objects."""
        state = self.state(loads=True)
        groups = {name: _groups(state[name]) for name in self._model_of}
        try:
            load(state, storage_reader=reader, planner=_Planner(list(self._model_of)), process_group=group)
        except CheckpointException as error:
            for _, (cause, _) in sorted(error.failures.items()):
                if isinstance(cause, _Other | RuntimeError | ValueError):  # the latter two are the planner's
                    raise Refused(f"it holds other objects: {cause}; pass those that it was saved with") from None
            raise
        for name, own in groups.items():
            if (saved := _groups(state[name])) != own:
                raise Refused(
                    f"it holds other objects: {name!r} has its parameters in groups of {_sizes(saved)} there and of "
                    f"{_sizes(own)} here: they must be the same, in the same order"
                )
        for name, each in self._objects.items():
            loaded = state[name]
            if isinstance(each, nn.Module):
                set_model_state_dict(each, loaded)
            elif name in self._model_of:
                whole = loaded | {"param_groups": _unpacked(loaded["param_groups"])}
                # Not strict: a parameter that had no gradient yet has no state.
                with _making_state(each):
                    set_optimizer_state_dict(self._model_of[name], each, whole, options=StateDictOptions(strict=False))
            else:
                each.load_state_dict(_unpacked(loaded) if isinstance(loaded, bytes) else loaded)

    def whole(self) -> State:
        """The states of all objects, of which no rank has only a part. A call of all ranks.

        Raises Refused for sharded ones, and for values that a load which executes nothing does not take.
        """
        state = {
            name: get_model_state_dict(each) if isinstance(each, nn.Module) else each.state_dict()
            for name, each in self._objects.items()
        }
        if name := next((name for name, each in state.items() if _sharded(each)), None):
            raise Refused(f"checkpoints: {name!r} is sharded, so its checkpoints need a folder that all pods share")
        for name, each in state.items():
            without = tree_map_only(Tensor, lambda tensor: None, each)  # which take most of the time, and are plain
            try:
                torch.load(io.BytesIO(exchange.saved(without)), weights_only=True)
            except pickle.UnpicklingError:
                raise Refused(
                    f"checkpoints: the state of {name!r} must have only tensors, numbers of Python, text, lists, and "
                    "dictionaries in a folder that rank 0 alone has: use one that all pods share"
                ) from None
        return state

    def load_whole(self, state: State) -> None:
        """Load all objects from their states. Raises what the objects raise."""
        for name, each in self._objects.items():
            if isinstance(each, nn.Module):
                set_model_state_dict(each, state[name])
            else:
                each.load_state_dict(state[name])

    def _having(self, optimizer: Optimizer) -> nn.Module | None:
        """The model that has all the parameters of `optimizer`."""
        own = {id(each) for each in parameters_of(optimizer)}
        return next((model for model in self._models if own <= {id(each) for each in model.parameters()}), None)

    @property
    def parameters(self) -> Iterator[Tensor]:
        """Those of all models."""
        return (each for model in self._models for each in model.parameters())

    @property
    def tensors_of_others(self) -> Iterator[Tensor]:
        """The tensors in the states of objects that are neither models nor optimizers."""
        others = (each for each in self._objects.values() if not isinstance(each, nn.Module | Optimizer))
        return (tensor for each in others for tensor in tensors(each.state_dict()))

    @property
    def tensors_of_optimizers(self) -> Iterator[Tensor]:
        """The tensors in the states of optimizers."""
        optimizers = (each for each in self._objects.values() if isinstance(each, Optimizer))
        return (tensor for each in optimizers for tensor in tensors([*each.state.values()]))

    def _steps_others(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` has parameters that are not saved, as far as the shapes in the objects' states tell."""
        own = {id(each) for each in self.parameters}
        left = [each for each in parameters_of(optimizer) if id(each) not in own]
        shapes = {tensor.shape for tensor in self.tensors_of_others} if left else set()
        return any(each.shape not in shapes for each in left)

    def _kind(self, each: Any) -> str:
        # A wrapper such as DDP changes a model's type, and not its state.
        return MODEL if isinstance(each, nn.Module) else type(each).__name__

    def _state(self, name: str, each: Any, loads: bool) -> Any:
        if isinstance(each, nn.Module):
            return get_model_state_dict(each)
        if name in self._model_of:
            with _making_state(each) if loads else _without_step(each):
                whole = get_optimizer_state_dict(self._model_of[name], each)
            return {"state": whole["state"], "param_groups": exchange.saved(whole["param_groups"])}
        whole = each.state_dict()
        return whole if _sharded(whole) else exchange.saved(whole)


@contextmanager
def _without_step(optimizer: Optimizer) -> Iterator[None]:
    """Suppress the step by which PyTorch makes a missing state: one that needs no gradients would change weights."""
    with _with_step(optimizer, lambda closure=None: None):
        yield


@contextmanager
def _making_state(optimizer: Optimizer) -> Iterator[None]:
    """Let PyTorch make the state of all parameters by a step: also of frozen ones, which can have been trained.

    Some optimizers, as those of sharpness-aware minimization, make no step without a closure, and some none with one.
    """
    step: Callable[..., Any] = optimizer.step

    def without_effect() -> Tensor:
        for each in parameters_of(optimizer):
            each.grad = torch.zeros_like(each)
        return torch.zeros(())

    def with_closure(closure: None = None) -> None:
        try:
            step(closure=None)
        except Exception:
            without_effect()  # it can have cleared the gradients before it has failed
            step(closure=without_effect)

    with _thawed(optimizer), _with_step(optimizer, with_closure):
        yield


@contextmanager
def _with_step(optimizer: Optimizer, step: Callable[..., Any]) -> Iterator[None]:
    own = vars(optimizer).get("step")  # of a learning rate scheduler
    optimizer.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        del optimizer.step
        if own:
            optimizer.step = own  # type: ignore[method-assign]


@contextmanager
def _thawed(optimizer: Optimizer) -> Iterator[None]:
    """Let frozen parameters require gradients: PyTorch makes no state of others."""
    frozen = [each for each in parameters_of(optimizer) if not each.requires_grad]
    for each in frozen:
        each.requires_grad_(True)
    try:
        yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


def _of_all_ranks(model: nn.Module, state: State) -> State:
    """The state of a model without its buffers, unless these are sharded."""
    buffers = {_unwrapped(buffer) for buffer, _ in model.named_buffers()}
    return {key: value for key, value in state.items() if _unwrapped(key) not in buffers or _sharded(value)}


def _unwrapped(name: str) -> str:
    """The name of a buffer without those of wrappers, as PyTorch's distributed checkpoint has it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class _Other(Exception):
    """The checkpoint has values that nothing takes up."""


class _Planner(DefaultLoadPlanner):
    """Loads everything that a checkpoint has, and fails if that is not everything that the objects have.

    Only the state of a parameter in an optimizer may be missing: a parameter that had no gradient yet has none.
    """

    def __init__(self, optimizers: list[str]):
        super().__init__()
        self._optimizers = optimizers

    def set_up_planner(self, state_dict: State, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        assert metadata is not None
        for name in self._optimizers:
            states = state_dict[name]["state"]
            for parameter, values in list(states.items()):
                if not any(f"{name}.state.{parameter}.{each}" in metadata.state_dict_metadata for each in values):
                    del states[parameter]
        super().set_up_planner(state_dict, metadata, is_coordinator)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        assert self.metadata is not None
        taken = {item.dest_index.fqn for plan in global_plan for item in plan.items}
        for name, value in self.metadata.state_dict_metadata.items():
            empty = isinstance(value, TensorStorageMetadata) and not value.size.numel()
            if name not in taken and not empty:
                raise _Other(f"it has {name}, which is not here")
        return super().create_global_plan(global_plan)


def _groups(state: State) -> list[set[str]]:
    """The groups of parameters in the state of an optimizer. Schedulers know them by their order."""
    return [set(each["params"]) for each in _unpacked(state["param_groups"])]


def _sizes(groups: list[set[str]]) -> str:
    return ", ".join(str(len(each)) for each in groups)


def _sharded(value: Any) -> bool:
    """Whether there is a sharded tensor in a state."""
    return any(isinstance(each, DTensor) for each in tensors(value))


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of all groups."""
    return (each for group in optimizer.param_groups for each in group["params"])


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a state."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, Tensor):
        yield value


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank has, without its gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)  # an object's state may be any object
