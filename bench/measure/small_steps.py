"""Where a step of the small tasks goes: CPU time of one core, in parts that are added one after the other.

python -m bench.measure.small_steps    prints a table
"""

import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy

from bench import huge_pages, machine
from bench.limit import PARTS
from bench.markdown import markdown
from bench.measure import throughput
from bench.measure.products import step_of
from bench.peers import common
from bench.table import TOOLS
from torchtally import tasks
from torchtally.environment import Places
from torchtally.training import loop

_STEPS, _ROUNDS = 200, 7
_TIMES = 3  # that the whole step is measured
_LAYOUTS = (torch.contiguous_format, torch.channels_last)


def parts(task: str) -> dict[str, Callable[[], object]]:
    """Each does what the one before it does, and more."""
    options = tasks.OPTIONS[task]()
    found = tasks.load(task, options)
    samples, _ = found.load(None, Places.from_env(os.environ).cache)
    model, optimizer = loop.build(found, options, torch.device("cpu"))
    model.train()
    chosen = torch.arange(common.BATCH)
    inputs, labels = found.inputs(samples.inputs[chosen]), samples.labels[chosen]

    def train(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        (cross_entropy(model(inputs), labels, reduction="sum") / common.BATCH).backward()

    def with_optimizer(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        train(inputs, labels)
        optimizer.step()

    return {
        "forward and backward pass": lambda: train(inputs, labels),
        "and the optimizer": lambda: with_optimizer(inputs, labels),
        "and the batch": lambda: with_optimizer(found.inputs(samples.inputs[chosen]), samples.labels[chosen]),
    }


def microseconds(step: Callable[[], object]) -> float:
    """The least CPU time of a step in a round: other programs can only add to it."""
    took = []
    for _ in range(_ROUNDS + 1):
        began = time.thread_time()
        for _ in range(_STEPS):
            step()
        took.append(1e6 * (time.thread_time() - began) / _STEPS)
    return min(took[1:])


def table(names: list[str]) -> Iterator[str]:
    columns = {}
    for task in names:
        columns[task] = {"products alone": min(microseconds(step_of(task, layout)) for layout in _LAYOUTS)}
        columns[task] |= {what: microseconds(step) for what, step in parts(task).items()}
        for tool in ("torchtally", "blog"):
            speed = max(throughput.measured(tool, task, 1)[0] for _ in range(_TIMES))
            columns[task][f"the whole step of {TOOLS[tool]}, by its throughput"] = 1e6 * common.BATCH / speed
    rows = [[what, *(f"{columns[task][what]:,.0f}" for task in names)] for what in columns[names[0]]]
    yield from markdown(["a step with", *(f"{task}, µs" for task in names)], rows, left=(0,))
    yield ""
    rounds = f"The least of n = {_ROUNDS} rounds of {_STEPS} steps of {common.BATCH} samples; {_TIMES} trainings."
    yield f"{rounds} {machine.sentence('torch', 'keras')}"


if __name__ == "__main__":
    huge_pages.start()  # as torchtally has them
    torch.set_num_threads(1)
    for line in table(sys.argv[1:] or [*PARTS]):
        print(line)
