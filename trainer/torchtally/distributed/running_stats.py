"""Moving statistics that a model keeps as parameters without gradient, as Keras' BatchNormalization does.

DDP leaves them alone, so on each rank they follow the rank's own samples; torch's BatchNorm keeps buffers, which it
broadcasts.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn


def statistics(model: nn.Module) -> list[Tensor]:
    """All floating parameters of `model` that have no gradient; of most models there are none."""
    return [each for each in model.parameters() if not each.requires_grad and each.is_floating_point()]


@torch.no_grad()
def average(own: list[Tensor]) -> None:
    """Put the mean over all ranks in the place of each rank's `own` statistics: a single collective call, if any."""
    if not own:
        return
    together = torch.cat([each.flatten() for each in own])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for each, mean in zip(own, together.split([each.numel() for each in own]), strict=True):
        each.copy_(mean.view_as(each))


def check(own: list[Tensor]) -> None:
    """Raise RuntimeError on every rank if they differ in a single bit. A collective call over gloo, if any."""
    if not own:
        return
    sha256 = hashlib.sha256()
    for each in own:
        sha256.update(each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    all_ranks: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, sha256.hexdigest())
    if others := [rank for rank, each in enumerate(all_ranks) if each != all_ranks[0]]:
        raise RuntimeError(f"the moving statistics of ranks {', '.join(map(str, others))} are not those of rank 0")
