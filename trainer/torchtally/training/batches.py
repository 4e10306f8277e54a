"""The sample indices of each step of a rank, as tensors."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchtally.accounting.schedule import Schedule
from torchtally.accounting.tally import Phase, Run

Batches = Callable[[Run, Phase], Iterator[Tensor]]


def batches(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Yield this rank's sample indices of each step of a phase, on the CPU."""
    return Schedule(phase.shard(run), phase.batch).tensors(torch.device("cpu"))
