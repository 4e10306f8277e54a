"""An embedding table that is sharded over all ranks, with look-ups by differentiable collective calls over gloo."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from torchtally import compat, exchange


class ShardedTable:
    """The table, as each rank sees it: row i is row i // world of rank i % world.

    All its calls, a look-up's backward pass among them, are collective calls. A rank without bags passes empty tensors.
    """

    def __init__(self, weight: Tensor, lr: float) -> None:
        """`weight` (rows, width) is the whole table, with its initial values. `lr`: the rate of its SGD."""
        assert dist.group.WORLD is not None
        self._group, self._world = dist.group.WORLD, dist.get_world_size()
        self._rows = nn.Parameter(weight[dist.get_rank() :: self._world].clone())
        self._optimizer = torch.optim.SGD([self._rows], lr=lr)

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """As Table.look_up."""
        owners = indices % self._world
        order = owners.argsort(stable=True)
        requested = owners.bincount(minlength=self._world)
        # Ranks exchange the numbers of requested rows, then their positions in the shards, then the rows.
        to_serve = torch.empty_like(requested)
        dist.all_to_all_single(to_serve, requested)
        served, received = to_serve.tolist(), requested.tolist()
        positions = torch.empty(sum(served), dtype=torch.int64)
        dist.all_to_all_single(positions, indices[order] // self._world, served, received)
        rows = compat.all_to_all(functional.embedding(positions, self._rows), received, served, self._group)
        bag_of = torch.repeat_interleave(offsets.diff(append=torch.tensor([len(indices)])))
        return rows.new_zeros(len(offsets), rows.shape[1]).index_add(0, bag_of[order], rows)

    def step(self) -> None:
        """As Table.step. The backward pass has summed the gradients of a row over all ranks."""
        assert self._rows.grad is not None
        self._rows.grad /= self._world
        self._optimizer.step()
        self._optimizer.zero_grad()

    def close(self) -> Tensor | None:
        """As Table.close."""
        shards = exchange.gather(self._rows.detach(), form=exchange.TENSORS)
        if not shards:
            return None
        table: Tensor = shards[0].new_empty(sum(map(len, shards)), shards[0].shape[1])
        for rank, shard in enumerate(shards):
            table[rank :: self._world] = shard
        return table
