"""DDP with gradient buckets that have their final layout before the first step."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from torchtally.distributed import running_stats
from torchtally.distributed.shared_memory import SharedGradients
from torchtally.options import AllReduce


def wrap(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    device: torch.device,
    memory: SharedGradients | None,
    all_reduce: AllReduce,
) -> nn.Module:
    """Wrap `model` in DDP and fix the layout of its buckets; `loss` is that of any batch. Parameters do not change.

    DDP alone changes the layout after the first step, and gloo sums in the order of the layout. With a fixed layout a
    resumed training makes the same sums, bit for bit, as an uninterrupted one.

    With `memory`, DDP determines only the layout of the gradients in it. The result is then `model` itself, because
    DDP's hooks and copies take a fifth of a step, and `all_reduce` has no effect. Running statistics and buffers are in
    `memory`, too.
    """
    constants = [*model.buffers(), *(each for each in model.parameters() if not each.requires_grad)]
    before = [each.detach().clone() for each in constants]
    wrapped = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True, static_graph=True
    )
    buckets: dict[int, list[nn.Parameter]] = {}
    if memory:
        wrapped.register_comm_hook(buckets, _record_bucket)
    elif all_reduce == "bfloat16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    wrapped.train()
    for _ in range(3):  # DDP knows a static graph after the first step, and the order of its gradients after the second
        loss(wrapped).backward()
        wrapped.zero_grad()
    with torch.no_grad():
        for each, value in zip(constants, before, strict=True):
            each.copy_(value)
    if memory is None:
        return wrapped
    memory.allocate([buckets[index] for index in sorted(buckets)], running_stats.of(model), [*model.buffers()])
    return model


def _record_bucket(buckets: dict[int, list[nn.Parameter]], bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """A communication hook that records a bucket's parameters and communicates nothing."""
    buckets[bucket.index()] = bucket.parameters()
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done
