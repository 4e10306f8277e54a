"""The sample indices of each step of a rank."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from torchtally.accounting import cuda
from torchtally.accounting.tally import Phase, Run

# Indices computed at a time: many steps' worth, little memory.
_CHUNK = {"cpu": 1 << 15, "cuda": 1 << 20}
_CPU = torch.device("cpu")

Batches = Callable[[Run, Phase], Iterator[Tensor]]


def batches(run: Run, phase: Phase, device: torch.device = _CPU) -> Iterator[Tensor]:
    """Yield this rank's sample indices of each step, on `device`: equally many steps on every rank, the last uneven.

    Step s covers the positions [start + s · batch, start + (s + 1) · batch) of the order at any number of ranks.
    """

    def begin(step: int) -> int:
        """The number, in this rank's shard, of its first sample at or after the step's first position."""
        return max(0, -(-(step * phase.batch - run.rank) // run.world))

    shard = phase.shard(run)
    steps = shard.steps(phase.batch)
    chunk = max(1, _CHUNK[device.type] * run.world // phase.batch)
    for first in range(0, steps, chunk):
        bounds = [begin(step) for step in range(first, min(first + chunk, steps) + 1)]
        part = bounds[0], bounds[-1]
        some = cuda.indices(shard, *part, device) if device.type == "cuda" else torch.from_numpy(shard.indices(*part))
        for low, high in pairwise(bounds):
            yield some[low - bounds[0] : high - bounds[0]]
