"""Running statistics that a model has as parameters without gradient, as Keras' BatchNormalization does.

DDP synchronizes buffers, as torch's BatchNorm has them, but not parameters without gradient. Without the functions here
they would follow each rank's own samples.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def of(model: nn.Module) -> list[Tensor]:
    """The floating-point parameters of `model` without gradient; most models have none."""
    return [each for each in model.parameters() if not each.requires_grad and each.is_floating_point()]


@torch.no_grad()
def average(statistics: list[Tensor]) -> None:
    """Replace each tensor by its mean over all ranks. One collective call, or none if there is nothing to average."""
    if not statistics or (world := dist.get_world_size()) == 1:
        return
    flat = torch.cat([each.flatten() for each in statistics]) * (1 / world)  # before the sum, as in shared memory
    dist.all_reduce(flat)
    for each, mean in zip(statistics, flat.split([each.numel() for each in statistics]), strict=True):
        each.copy_(mean.view_as(each))
