"""An embedding table on rank 0, which all ranks use by RPC over TensorPipe.

RPC is in maintenance in PyTorch; sharded_table.py has the same table without it.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc
from torch.nn import functional

from torchtally import compat

_SERVER = "rank-0"
_TIMEOUT = 60  # seconds for a call; the training survives a server that is frozen for less

_served: "list[_Server]" = []  # on rank 0, the table: what a call finds there


class RemoteTable:
    """The table, as each rank sees it. Making and closing it are collective calls."""

    def __init__(self, weight: Tensor, lr: float) -> None:
        """`weight` (rows, width): the initial values. `lr`: the rate of its SGD."""
        rank, world = dist.get_rank(), dist.get_world_size()
        self._anchor = torch.zeros((), requires_grad=True)  # without it, autograd would leave the look-up out
        if rank == 0:
            _served[:] = [_Server(weight, lr)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a Backend")  # caused by init_rpc itself
            options = compat.rpc_over_tcp(_TIMEOUT)
            # The ranks exchange their addresses through the job's store.
            rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=world, rpc_backend_options=options)

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """As Table.look_up. The backward pass sends the gradient to the server."""
        sums: Tensor = _LookUp.apply(self._anchor, indices, offsets)
        return sums

    def step(self) -> None:
        """As Table.step."""
        dist.all_reduce(torch.zeros(()))  # all gradients have arrived
        for server in _served:
            server.step()
        dist.all_reduce(torch.zeros(()))  # no rank looks up a row before the step

    def close(self) -> Tensor | None:
        """As Table.close."""
        rpc.shutdown(timeout=_TIMEOUT)
        return _served.pop().weight if _served else None


class _Server:
    """The table on rank 0: the only one who changes it."""

    def __init__(self, weight: Tensor, lr: float) -> None:
        self.weight = weight.clone()
        self._optimizer = torch.optim.SGD([self.weight], lr=lr)
        self._gradients: dict[int, Tensor] = {}  # of the step, by rank

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        return functional.embedding_bag(indices, self.weight, offsets, mode="sum")

    def receive(self, rank: int, indices: Tensor, offsets: Tensor, gradient: Tensor) -> None:
        """Keep a rank's gradient of the sums (bags, width) that it has looked up."""
        bag_of = torch.repeat_interleave(offsets.diff(append=torch.tensor([len(indices)])))
        self._gradients[rank] = torch.zeros_like(self.weight).index_add_(0, indices, gradient[bag_of])

    def step(self) -> None:
        # In the order of the ranks, not in that of their calls, so that a run's bits repeat.
        gradients = [self._gradients[rank] for rank in sorted(self._gradients)]
        self._gradients.clear()
        self.weight.grad = torch.stack(gradients).sum(dim=0) / dist.get_world_size()
        self._optimizer.step()


class _LookUp(torch.autograd.Function):
    """A look-up by RPC, whose backward pass is an RPC, too."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(indices, offsets)
        sums: Tensor = rpc.rpc_sync(_SERVER, _look_up, (indices, offsets))
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        rpc.rpc_sync(_SERVER, _receive, (dist.get_rank(), *ctx.saved_tensors, gradient))
        return None, None, None


def _look_up(indices: Tensor, offsets: Tensor) -> Tensor:
    return _served[0].look_up(indices, offsets)


def _receive(rank: int, indices: Tensor, offsets: Tensor, gradient: Tensor) -> None:
    _served[0].receive(rank, indices, offsets, gradient)
