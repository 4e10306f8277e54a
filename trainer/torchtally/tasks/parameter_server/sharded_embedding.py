"""An embedding table whose rows lie on several ranks, and are looked up by collectives that know autograd: no RPC."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from torchtally import compat


class ShardedEmbeddingBag(nn.Module):
    """torch.nn.EmbeddingBag with mode "sum" over a group with gloo: row i is row i // size of rank i % size.

    Every call, and every backward pass, is a collective one: a rank without bags of its own gives empty tensors. The
    gradient of a row is the sum over the bags of all ranks.
    """

    def __init__(self, weight: Tensor, group: dist.ProcessGroup) -> None:
        """`weight` is the whole table (rows, width), of which this rank keeps its own rows."""
        super().__init__()
        self._group = group
        self.weight = nn.Parameter(weight.detach()[group.rank() :: group.size()].clone())

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums (bags, width) of the rows `indices`, int64, of bags that begin at `offsets` among them."""
        owners = indices % self._group.size()
        order = owners.argsort(stable=True)
        wanted = owners.bincount(minlength=self._group.size())
        # Each rank is asked for some rows, and asks for some: how many, then which, then the rows come back.
        asked = torch.empty_like(wanted)
        dist.all_to_all_single(asked, wanted, group=self._group)
        gives, takes = asked.tolist(), wanted.tolist()
        slots = torch.empty(sum(gives), dtype=torch.int64)
        dist.all_to_all_single(slots, indices[order] // self._group.size(), gives, takes, group=self._group)
        rows = compat.all_to_all(functional.embedding(slots, self.weight), takes, gives, self._group)
        bag_of = torch.repeat_interleave(offsets.diff(append=torch.tensor([len(indices)])))
        return rows.new_zeros(len(offsets), rows.shape[1]).index_add(0, bag_of[order], rows)


class ShardedTable:
    """On each rank that holds rows, whether it trains or not. They and the trainer's own `parameters` learn together.

    Its calls are collective ones of `holders`, in the same order on all.
    """

    def __init__(
        self, weight: Tensor, parameters: Iterable[nn.Parameter], lr: float, holders: dist.ProcessGroup
    ) -> None:
        self.embedding = ShardedEmbeddingBag(weight, holders)
        self._optimizer = torch.optim.SGD([self.embedding.weight, *parameters], lr=lr)

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        sums: Tensor = self.embedding(indices, offsets)
        return sums

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Learn from what `loss` returns, which has looked up once."""
        found = loss()
        found.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return found.detach()


def whole(shards: list[Tensor]) -> Tensor:
    """The table whose rows the ranks of a group hold, from what each of them keeps."""
    table = shards[0].new_empty(sum(map(len, shards)), shards[0].shape[1])
    for rank, shard in enumerate(shards):
        table[rank :: len(shards)] = shard
    return table
