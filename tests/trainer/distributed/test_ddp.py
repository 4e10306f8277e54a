"""The gradients of ranks that share no memory are summed in the type that was asked for."""

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from torchtally.distributed import ddp
from torchtally.options import AllReduce


def _row(rank: int) -> Tensor:
    """The gradient that a rank puts in: both end with a number that bfloat16 has, of which it has no mean."""
    random = torch.Generator().manual_seed(rank)
    return torch.cat([torch.randn(1000, generator=random), torch.tensor([(2.0, 2.0**-8)[rank]])])


def _mean(rank: int, world: int, store: Store, all_reduce: AllReduce) -> list[float]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    model, row = nn.Linear(1001, 1, bias=False), _row(rank)
    trained = ddp.wrap(model, lambda model: model(row).sum(), toy.CPU, None, all_reduce)
    trained(row).sum().backward()
    assert model.weight.grad is not None
    found: list[float] = model.weight.grad.flatten().tolist()
    return found


@pytest.mark.parametrize(
    ("all_reduce", "dtype", "last"), [("float32", torch.float32, 1 + 2**-9), ("bfloat16", torch.bfloat16, 1.0)]
)
def test_gradients_are_summed_in_the_type_that_was_asked_for(
    all_reduce: AllReduce, dtype: torch.dtype, last: float
) -> None:
    expected = sum(_row(rank).to(dtype).div(2) for rank in range(2)).float().tolist()
    assert expected[-1] == last
    assert ranks.run(2, _mean, all_reduce) == [expected] * 2
