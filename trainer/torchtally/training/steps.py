"""The steps of a built-in task: batches of sample indices, and the seeds of what a step draws."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchtally.accounting.batches.step_loader import NOTHING, Taken
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.order.schedule import Schedule, Step
from torchtally.proof.shards import Shard
from torchtally.training.task import Inputs, Samples

_AHEAD = 2  # steps whose rows are begun


class Steps:
    """The batches of a phase, for `Account.epoch`.

    They seed only the generators of PyTorch, for dropout: nothing in a built-in task draws from another one.

    Args:
        sampler: This rank's part of the order.
        samples: The samples of the phase.
        rows: What a batch has as its data, by its indices on the device of the samples (default: these).
    """

    seeds = makes_empty_batches = True

    def __init__(self, sampler: Sampler, samples: Samples, rows: Callable[[Tensor], Any] = lambda chosen: chosen):
        self._sampler, self._samples, self._rows = sampler, samples, rows

    def __iter__(self) -> Iterator[Taken]:
        schedule, device = self._sampler.schedule, self._samples.labels.device
        inputs = self._samples.inputs
        # What makes rows on the CPU looks at the indices there, and would wait for the device for others.
        where = device if isinstance(inputs, Tensor) else torch.device("cpu")
        for step in schedule.left() if isinstance(inputs, Tensor) else _begun(schedule, inputs):
            reseed(_seed(schedule.shard, step), device)
            chosen = torch.from_numpy(step.indices).to(where, non_blocking=True)
            yield Taken(step.indices, self._rows(chosen), NOTHING, step)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the random numbers of a step (dropout), so that no generator is saved."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def _seed(shard: Shard, step: Step) -> int:
    """The seed of a step, by the run's seed, position, and rank."""
    seed = 0
    for value in (shard.seed, shard.epoch, step.position, shard.rank):
        seed = (seed + value) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)
    return seed


def _begun(schedule: Schedule, inputs: Inputs) -> Iterator[Step]:
    """Yield each step, once the rows of the steps after it are begun."""
    ahead: deque[Step] = deque()
    for step in schedule.left():
        seed = _seed(schedule.shard, step) ^ 1  # other random numbers than those of the step itself
        inputs.begin(torch.from_numpy(step.indices), seed)
        ahead.append(step)
        if len(ahead) > _AHEAD:
            yield ahead.popleft()
    yield from ahead
