"""A model whose ranks train as one: DDP, with its buckets laid out before the first step."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from torchtally.distributed.shared_memory import Shared
from torchtally.options import AllReduce


def parallel(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    device: torch.device,
    memory: Shared | None,
    all_reduce: AllReduce,
) -> nn.Module:
    """The model under DDP, its buckets laid out for good, which a first step alone would do; `loss` is any of a batch.

    gloo adds up in the order of the layout: after this a resumed training makes the same sums, bit for bit, as one that
    went on. Nothing else is changed. With `memory` it is the bare model, and DDP gave its layout alone: its hooks and
    copies are a fifth of a step; its gradients go nowhere, and `all_reduce` has no say.
    """
    kept = [*model.buffers(), *(each for each in model.parameters() if not each.requires_grad)]
    before = [each.detach().clone() for each in kept]
    wrapped = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True, static_graph=True
    )
    buckets: dict[int, list[nn.Parameter]] = {}
    if memory:
        wrapped.register_comm_hook(buckets, _noted)
    elif all_reduce == "bfloat16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    wrapped.train()
    for _ in range(3):  # a static graph is known after the first, the order of its gradients after the second
        loss(wrapped).backward()
        wrapped.zero_grad()
    with torch.no_grad():
        for each, value in zip(kept, before, strict=True):
            each.copy_(value)
    if memory is None:
        return wrapped
    memory.lay_out([buckets[index] for index in sorted(buckets)])
    return model


def _noted(buckets: dict[int, list[nn.Parameter]], bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """A hook of DDP that notes what is in a bucket, and sums nothing up."""
    buckets[bucket.index()] = bucket.parameters()
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done
