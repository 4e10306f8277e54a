"""The sample indices of each step of a rank, as tensors."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchtally.accounting.ledger.tally import Phase, Run
from torchtally.accounting.order.schedule import Schedule

Batches = Callable[[Run, Phase], Iterator[Tensor]]


def batches(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Yield this rank's sample indices of each step of a phase, on the CPU."""
    return Schedule(phase.shard(run), phase.batch).tensors(torch.device("cpu"))
