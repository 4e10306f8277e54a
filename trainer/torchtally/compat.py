"""The private names of PyTorch, and two of Python, that this package uses. Each may change with any release.

tests/trainer/test_compat.py tells which has changed. Those of torchmetrics are in compat_torchmetrics.py, which is
imported only where torchmetrics is used.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is there, unannounced
from torch.distributed.distributed_c10d import ProcessGroup, Store
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from torch.distributed.rpc import TensorPipeRpcBackendOptions

PRIVATE = (
    "torch:Tensor._backward_hooks",
    "torch._C:_current_graph_task_id",
    "torch._dynamo",
    "torch.autograd:Variable._execution_engine.queue_callback",
    "torch.distributed.tensor:DTensor._local_tensor",
    "torch.distributed._functional_collectives:all_to_all_single_autograd",
    "torch.distributed.distributed_c10d:_get_default_store",
    "torch.distributed.elastic.agent.server.api:_TERMINAL_STATE_SYNC_ID",
    "torch.distributed.elastic.multiprocessing.api:get_subprocess_handler",
    "torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler._popen",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend:TCPStore",
    "torch.distributed.elastic.utils.store:_LAST_MEMBER_CHECKIN",
    "torch.nn.modules.batchnorm:_BatchNorm",
    "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers",
)
OF_PYTHON = ("threading:_shutdown", "atexit:_run_exitfuncs")
LIBC10 = "lib/libc10.*"
INIT_LOGGING = "_ZN3c1011initLoggingEv"  # c10::initLogging()


def default_store() -> Store:
    """Return the store of the default process group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def after_backward(function: Callable[[], None]) -> None:
    """Call `function` at the end of the backward pass in progress, before what is queued later."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def hook(tensor: Tensor, function: Callable[[Tensor], Tensor | None]) -> None:
    """Do what `tensor.register_hook(function)` does, without its handle, which takes two thirds of the time."""
    if type(tensor) is not Tensor or tensor.grad_fn is None or torch.compiler.is_compiling():
        tensor.register_hook(function)
        return
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)
    tensor._backward_hooks[id(function)] = function


def backward_number() -> int:
    """The number of the backward pass that runs, the same in all of its hooks."""
    return torch._C._current_graph_task_id()


def marks_of(tensors: list[Tensor | None]) -> tuple[tuple[int, int] | None, ...]:
    """Of each tensor its id, and how often it has been written to in place. In one call: a step makes some of many.

    FSDP adds to the local part of a DTensor, which does not count that.
    """
    return tuple(
        [
            None
            if each is None
            else (id(each), (each if type(each) is Tensor else getattr(each, "_local_tensor", each))._version)
            for each in tensors
        ]
    )


def captures() -> bool:
    """Whether a CUDA graph is being captured, in which no value can be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether the model has one of torch's BatchNorm layers, of any number of dimensions."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())


def end_workers(loader: DataLoader[Any]) -> None:
    """End the workers of a DataLoader that outlive an iteration.

    PyTorch ends them when the loader is freed. If the garbage collector frees it, they do not hear of it: then PyTorch
    waits 5 s for each.
    """
    iterator: Any = loader._iterator
    if iterator is not None:
        iterator._shutdown_workers()
        loader._iterator = None


def all_to_all(rows: Tensor, takes: list[int], gives: list[int], group: ProcessGroup) -> Tensor:
    """Exchange rows between all ranks: `gives[r]` to rank r, `takes[r]` from it. Autograd knows it."""
    from torch.distributed import _functional_collectives

    exchanged: Tensor = _functional_collectives.all_to_all_single_autograd(rows, takes, gives, group)
    return exchanged


def rpc_over_tcp(seconds: float) -> "TensorPipeRpcBackendOptions":
    """Return options of RPC over TCP alone, with a timeout for each call.

    TensorPipe's shared memory, its default on one machine, keeps a CPU busy in each process.
    """
    from torch.distributed import rpc

    return rpc.TensorPipeRpcBackendOptions(rpc_timeout=seconds, _transports=["uv"], _channels=["basic"])


def import_optimizers() -> None:
    """Import what an optimizer imports when it is made, so that ranks forked later share it."""
    before = dict(os.environ)
    importlib.import_module("torch._dynamo")
    for name in os.environ.keys() - before.keys():  # a default for processes that it starts itself
        del os.environ[name]


def exit_barrier_key() -> str:
    """Return the key that opens the exit barrier of torchrun's agents, in their part of the store."""
    from torch.distributed.elastic.agent.server import api
    from torch.distributed.elastic.utils import store

    return api._TERMINAL_STATE_SYNC_ID + store._LAST_MEMBER_CHECKIN


def start_ranks_with(start: Callable[[tuple[str, ...], dict[str, str]], Any]) -> None:
    """Have torchrun's agent ask `start(command, environment)` for each rank before it starts a process itself.

    `start` returns as much of a subprocess.Popen as the agent uses, or None. It is not asked for a rank whose output
    goes to files.
    """
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            started = start(args, env) if self._stdout is None and self._stderr is None else None
            return super()._popen(args, env) if started is None else started

    api.get_subprocess_handler = Handler  # type: ignore[attr-defined,assignment]  # where the agent looks for it


def serve_elastic_store_on(listener: Callable[[str, int], socket.socket | None]) -> None:
    """Have the agent of an elastic job serve its store on the socket `listener(host, port)`, or anywhere for None.

    PyTorch itself has it listen on all addresses.
    """
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backend

    def store(host: str, port: int, is_master: bool, **others: Any) -> TCPStore:
        try:
            opened = listener(host, port) if is_master else None
        except OSError as error:
            raise RuntimeError(error) from None  # the agent then looks for another one's store
        if opened is None:
            return TCPStore(host, port, is_master=is_master, **others)
        host, port = opened.getsockname()[:2]
        return TCPStore(host, port, is_master=True, master_listen_fd=opened.detach(), **others)

    backend.TCPStore = store  # type: ignore[attr-defined,assignment]  # where the agent looks for it


def silence_cpp_log() -> None:
    """Silence the log of PyTorch's C++ in this process, unless the user has chosen a level for it."""
    if "TORCH_CPP_LOG_LEVEL" in os.environ:
        return
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    with contextlib.suppress(
        OSError, AttributeError, StopIteration
    ):  # a build that names it otherwise: it only says more
        # It reads the variable. Set before torch is imported, the variable would hold for forked ranks, too.
        getattr(ctypes.CDLL(str(next(Path(torch.__file__).parent.glob(LIBC10)))), INIT_LOGGING)()
    del os.environ["TORCH_CPP_LOG_LEVEL"]  # the ranks have a log of their own


def finish_python() -> None:
    """Do what Python does first at its end: wait for threads, and call exit handlers.

    No public name does it without what follows. Python takes its objects apart then, which in a forked rank copies the
    memory that ranks share. To join all threads is not enough: those of executors wait to be told of the end.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
