"""The parameter server's table, as the coordinator has it made and as trainers reach it: by RPC, over TensorPipe.

PyTorch keeps RPC in maintenance; sharded_embedding.py does the same without it.
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
SECONDS = 60  # that a call may take: a server that is frozen for less goes on afterwards

_made: "Future[Any]" = Future()  # on the coordinator: the table, for trainers to ask for


class Table:
    """On the server."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` (rows, width): the first one."""
        self._bag = nn.EmbeddingBag.from_pretrained(weight.detach().clone(), freeze=False, mode="sum")

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums (bags, width) of the rows `indices` of bags that begin at `offsets` among them."""
        sums: Tensor = self._bag(indices, offsets)
        return sums

    def parameter(self) -> "rpc.RRef[Tensor]":
        return rpc.RRef(self._bag.weight)

    def weight(self) -> Tensor:
        return self._bag.weight.detach()


class RemoteTable:
    """On a trainer. The table and the trainer's own `parameters` learn together."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, trainers: dist.ProcessGroup) -> None:
        with _server_named():
            self._table: Any = rpc.rpc_sync(_name(COORDINATOR), _ask)
            remote = self._table.rpc_sync().parameter()
            logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)  # see Sgd
            self._optimizer = DistributedOptimizer(Sgd, [remote, *map(rpc.RRef, parameters)], lr=lr)
        self._trainers = trainers

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """As Table's; the gradient finds its way back to the server."""
        sums: Tensor = self._table.rpc_sync().look_up(indices, offsets)
        return sums

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Learn from what `loss` returns, as all trainers do at the same time."""
        with _server_named():
            with autograd.context() as context:
                found = loss()
                autograd.backward(context, [found])  # type: ignore[attr-defined]
                self._optimizer.step(context)
            # Nobody looks up before all have stepped. Before anybody steps, all have looked up: DDP waits for them.
            dist.all_reduce(torch.zeros(()), group=self._trainers)
        return found.detach()


class Sgd(torch.optim.SGD):
    """SGD by another name: of those it knows DistributedOptimizer takes a version that steps without a lock.

    On the server the steps of two trainers would then overwrite each other now and then.
    """


def join(rank: int, world: int) -> None:
    """Make RPC ready on all ranks; the store of the job's rendezvous carries their addresses."""
    options = compat.rpc_over_tcp(SECONDS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend")  # init_rpc's own way to make a group
        rpc.init_rpc(_name(rank), rank=rank, world_size=world, rpc_backend_options=options)


def leave() -> None:
    """Wait for all ranks, and end RPC."""
    rpc.shutdown(timeout=SECONDS)


def make(weight: Tensor) -> "rpc.RRef[Table]":
    """On the coordinator: have the table made on the server, and hand it to trainers that ask."""
    table: rpc.RRef[Table] = rpc.remote(_name(SERVER), Table, args=(weight.detach(),))
    _made.set_result(table)
    return table


def fetch(table: "rpc.RRef[Table]") -> Tensor:
    """The weight as it is."""
    with _server_named():
        weight: Tensor = table.rpc_sync().weight()
    return weight


def _ask() -> Any:
    return _made.result(SECONDS)


def _name(rank: int) -> str:
    return {COORDINATOR: "coordinator", SERVER: "server"}.get(rank, f"trainer-{rank - SERVER - 1}")


@contextlib.contextmanager
def _server_named() -> Iterator[None]:
    """Name the server where it is gone, or silent. Raises Lost."""
    try:
        yield
    except RuntimeError as error:
        if not lost_by_rpc(error):
            raise
        pod = f" ({name})" if (name := pod_of(SERVER)) else ""
        why = str(error).splitlines()[0]
        raise Lost(f"the parameter server, rank {SERVER}{pod}, went away or did not answer: {why}") from None
