"""The embedding table on the parameter server, and its use by RPC over TensorPipe.

RPC is in maintenance in PyTorch; sharded_embedding.py has the same table without it.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from torchtally import compat
from torchtally.environment import pod_of
from torchtally.errors import Lost, lost_by_rpc

COORDINATOR, SERVER = 0, 1  # ranks; all others train
_TIMEOUT = 60  # seconds for a call; the training survives a server that is frozen for less

_created: "Future[Any]" = Future()  # on the coordinator: the table, which trainers fetch


class Table:
    """The table, on the server."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` (rows, width): the initial values."""
        self._bag = nn.EmbeddingBag.from_pretrained(weight.detach().clone(), freeze=False, mode="sum")

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums (bags, width) of the rows `indices` (int64), one for each bag; bags begin at `offsets`."""
        sums: Tensor = self._bag(indices, offsets)
        return sums

    def parameter(self) -> "rpc.RRef[Tensor]":
        return rpc.RRef(self._bag.weight)

    def weight(self) -> Tensor:
        return self._bag.weight.detach()


class RemoteTable:
    """The server's table, on a trainer. A step updates the table and the trainer's `parameters`."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, trainers: dist.ProcessGroup) -> None:
        with _lost_server():
            self._table: Any = rpc.rpc_sync(_name(COORDINATOR), _wait_for_table)
            remote = self._table.rpc_sync().parameter()
            logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)  # see Sgd
            self._optimizer = DistributedOptimizer(Sgd, [remote, *map(rpc.RRef, parameters)], lr=lr)
        self._trainers = trainers

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """As Table.look_up; distributed autograd sends the gradient to the server."""
        with _lost_server():  # also in an evaluation, which has no step
            sums: Tensor = self._table.rpc_sync().look_up(indices, offsets)
        return sums

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Make a step with the gradient of `loss()`, and return the loss. All trainers call it together."""
        with _lost_server():
            with autograd.context() as context:
                value = loss()
                autograd.backward(context, [value])  # type: ignore[attr-defined]
                self._optimizer.step(context)
            # No trainer looks up rows before all have stepped. DDP already ensures that none steps before all look-ups.
            dist.all_reduce(torch.zeros(()), group=self._trainers)
        return value.detach()


class Sgd(torch.optim.SGD):
    """SGD under another name: DistributedOptimizer replaces torch's SGD by a version that steps without a lock.

    With it, the steps of two trainers would sometimes overwrite each other on the server.
    """


def join(rank: int, world: int) -> None:
    """Initialize RPC on all ranks, which exchange their addresses through the job's store."""
    options = compat.rpc_over_tcp(_TIMEOUT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend")  # caused by init_rpc itself
        rpc.init_rpc(_name(rank), rank=rank, world_size=world, rpc_backend_options=options)


def shut_down() -> None:
    """Wait for all ranks, and shut RPC down."""
    rpc.shutdown(timeout=_TIMEOUT)


def create(weight: Tensor) -> "rpc.RRef[Table]":
    """Create the table on the server, and publish it to the trainers. The coordinator calls it."""
    table: rpc.RRef[Table] = rpc.remote(_name(SERVER), Table, args=(weight.detach(),))
    _created.set_result(table)
    return table


def fetch(table: "rpc.RRef[Table]") -> Tensor:
    """The table's current weight (rows, width)."""
    with _lost_server():
        weight: Tensor = table.rpc_sync().weight()
    return weight


def _wait_for_table() -> Any:
    return _created.result(_TIMEOUT)


def _name(rank: int) -> str:
    return {COORDINATOR: "coordinator", SERVER: "server"}.get(rank, f"trainer-{rank - SERVER - 1}")


@contextlib.contextmanager
def _lost_server() -> Iterator[None]:
    """Raise Lost with the server's name if it is gone or does not answer."""
    try:
        yield
    except RuntimeError as error:
        if not lost_by_rpc(error):
            raise
        pod = f" ({name})" if (name := pod_of(SERVER)) else ""
        why = str(error).splitlines()[0]
        raise Lost(f"the parameter server, rank {SERVER}{pod}, went away or did not answer: {why}") from None
