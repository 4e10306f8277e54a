"""What the timing of steps costs, of a small step: the CPU time of the training thread, with and without it in turn.

python -m bench.measure.step_time    prints a table

The step is that of a perceptron. With the timing, it does what an account does in each step on a rank among others. It
times the fetch of the batch, the step, and now and then the end of the backward pass, and looks whether a meeting
is due.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from bench import machine
from bench.markdown import markdown, shown
from bench.spread import spread
from torchtally.accounting.step_time import StepTime
from torchtally.distributed.waiting import WAITED

BATCHES = (32, 256)
_STEPS = 200  # of a pass
_PAIRS = 200  # of passes: each way first in half of them


def main() -> None:
    torch.set_num_threads(1)
    print("\n".join(table()))


def measure(batch: int, pairs: int = _PAIRS) -> dict[str, list[float]]:
    """By name: microseconds of a step in each pass, and the further time of each pair in per cent.

    `alone` is the timing of steps that do nothing, whose backward passes it does not measure.
    """
    images, labels = torch.randn(batch, 784), torch.randint(10, (batch,))
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = StepTime(2)

    def nothing() -> None:
        pass

    def train() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def untimed(step: Callable[[], None] = train) -> None:
        WAITED.measures = False
        for _ in range(_STEPS):
            step()

    def timed(step: Callable[[], None] = train) -> None:
        times.begin()
        for _ in times.fetched(range(_STEPS)):
            step()
            times.stepped()
            time.monotonic()  # whether a meeting is due, which is seldom
            times.begin()

    ways: dict[str, Callable[[], None]] = {"untimed": untimed, "timed": timed, "alone": lambda: timed(nothing)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for pair in range(-1, pairs):  # one to warm up
        for name in ways if pair % 2 else reversed(ways):
            began = time.thread_time()
            ways[name]()
            found[name].append((time.thread_time() - began) / _STEPS * 1e6)
    kept = {name: values[1:] for name, values in found.items()}
    both = zip(kept["timed"], kept["untimed"], strict=True)
    return kept | {"further": [100 * (with_it / without - 1) for with_it, without in both]}


def table() -> Iterator[str]:
    rows = []
    for batch in BATCHES:
        found = measure(batch)
        rows.append([str(batch), *(shown(spread(found[name])) for name in ("untimed", "timed", "further", "alone"))])
    yield from markdown(["batch", "untimed, µs", "timed, µs", "further, %", "without a step, µs"], rows, left=())
    yield ""
    yield f"Medians of n = {_PAIRS} pairs of {_STEPS} steps. {machine.sentence('torch')}"


if __name__ == "__main__":
    main()
