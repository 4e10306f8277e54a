"""An embedding table that is sharded over several ranks, with look-ups by differentiable collective calls."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from torchtally import compat


class ShardedEmbeddingBag(nn.Module):
    """torch.nn.EmbeddingBag with mode "sum", sharded over a gloo group: row i is row i // size of rank i % size.

    Each forward and backward pass is a collective call: a rank without bags passes empty tensors. The gradient of a row
    is the sum over the bags of all ranks.
    """

    def __init__(self, weight: Tensor, group: dist.ProcessGroup) -> None:
        """`weight` (rows, width) is the unsharded table, from which this rank takes its shard."""
        super().__init__()
        self._group = group
        self.weight = nn.Parameter(weight.detach()[group.rank() :: group.size()].clone())

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums (bags, width) of the rows `indices` (int64), one for each bag; bags begin at `offsets`."""
        owners = indices % self._group.size()
        order = owners.argsort(stable=True)
        requested = owners.bincount(minlength=self._group.size())
        # Ranks exchange the numbers of requested rows, then their positions in the shards, then the rows.
        to_serve = torch.empty_like(requested)
        dist.all_to_all_single(to_serve, requested, group=self._group)
        served, received = to_serve.tolist(), requested.tolist()
        positions = torch.empty(sum(served), dtype=torch.int64)
        dist.all_to_all_single(positions, indices[order] // self._group.size(), served, received, group=self._group)
        rows = compat.all_to_all(functional.embedding(positions, self.weight), received, served, self._group)
        bag_of = torch.repeat_interleave(offsets.diff(append=torch.tensor([len(indices)])))
        return rows.new_zeros(len(offsets), rows.shape[1]).index_add(0, bag_of[order], rows)


class ShardedTable:
    """The sharded table, on each rank with a shard. A step updates the shard and a trainer's own `parameters`.

    All its calls are collective calls of `group`, in the same order on all ranks.
    """

    def __init__(self, weight: Tensor, parameters: Iterable[nn.Parameter], lr: float, group: dist.ProcessGroup) -> None:
        self.embedding = ShardedEmbeddingBag(weight, group)
        self._optimizer = torch.optim.SGD([self.embedding.weight, *parameters], lr=lr)

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        sums: Tensor = self.embedding(indices, offsets)
        return sums

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Make a step with the gradient of `loss()`, which looks up once, and return the loss."""
        value = loss()
        value.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return value.detach()


def unshard(shards: list[Tensor]) -> Tensor:
    """The table (rows, width) from the shards of all ranks of a group."""
    table = shards[0].new_empty(sum(map(len, shards)), shards[0].shape[1])
    for rank, shard in enumerate(shards):
        table[rank :: len(shards)] = shard
    return table
