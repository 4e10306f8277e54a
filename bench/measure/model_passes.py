"""The forward and backward pass of a model alone, in bfloat16, on one core: no data, no other rank.

python -m bench.measure.model_passes  prints a table of the CPU time of the passes and of fused AdamW, by memory format
"""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench import huge_pages, machine
from bench.limit import PASSES
from bench.markdown import markdown
from bench.peers import common, gpt

_LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
_TASKS = ("image-folder-64", "image-folder-224")
_SECONDS = 0.5
_TIMES = 5


class Case:
    """A model and a batch."""

    def __init__(self, net: nn.Module, inputs: Tensor, labels: Tensor, units: int):
        self.net, self.inputs, self.labels = net, inputs, labels
        self.units = units  # samples or tokens of the batch

    def forward(self) -> Tensor:
        self.net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output: Tensor = self.net(self.inputs)
            return cross_entropy(output.flatten(0, -2).float(), self.labels)

    def seconds(self) -> float:
        """Mean seconds of both passes."""
        self.forward().backward()
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < _SECONDS:
            self.forward().backward()
            count += 1
        return (time.perf_counter() - began) / count

    def profile(self) -> list[float]:
        """Median milliseconds of CPU time: both passes, and a step of fused AdamW."""
        optimizer = torch.optim.AdamW(self.net.parameters(), fused=True)
        took: list[list[float]] = []
        for _ in range(1 + _TIMES):
            times = [time.process_time()]
            loss = self.forward()
            times.append(time.process_time())
            loss.backward()
            times.append(time.process_time())
            optimizer.step()
            times.append(time.process_time())
            took.append([1e3 * (end - begin) for begin, end in pairwise(times)])
        return [median(part) for part in zip(*took[1:], strict=True)]


def cases() -> Iterator[tuple[str, str, Case]]:
    """The name in PASSES, the way, and the case."""
    for way, kind in {"float32, autocast": torch.float32, "bfloat16, as in FSDP2": torch.bfloat16}.items():
        yield PASSES["gpt-ddp"], way, of_gpt(kind)
    for task in _TASKS:
        for way, layout in _LAYOUTS.items():
            yield PASSES[task], way, of_images(int(task.rpartition("-")[2]), common.BATCH, layout)


def of_gpt(kind: torch.dtype = torch.float32) -> Case:
    """A step of a GPT, with weights of this type."""
    tokens = torch.randint(len(gpt.data().vocabulary), (gpt.BATCH, gpt.LENGTH + 1))
    return Case(gpt.model().to(kind), tokens[:, :-1], tokens[:, 1:].flatten(), gpt.BATCH * gpt.LENGTH)


def of_images(side: int, rows: int, layout: torch.memory_format = torch.channels_last) -> Case:
    """A step of the task image-folder, with so many images of `side` x `side` pixels."""
    pixels = torch.rand(rows, 3, side, side).to(memory_format=layout)
    net = common.model("image-folder").to(memory_format=layout)
    return Case(net, pixels, torch.zeros(rows, dtype=torch.int64), rows)


def speeds() -> dict[str, float]:
    """Samples or tokens per second in the fastest way, by the name in PASSES."""
    found: dict[str, float] = {}
    for name, _, case in cases():
        found[name] = max(found.get(name, 0.0), case.units / case.seconds())
    return found


def table() -> Iterator[str]:
    rows = [[name, way, *(f"{each:.3g}" for each in case.profile())] for name, way, case in cases()]
    parts = ["forward, ms", "backward, ms", "PyTorch's fused AdamW, ms"]
    header = ["of", "weights or memory format", *parts]
    yield from markdown(header, rows, left=(0, 1))
    yield ""
    yield f"Medians of n = {_TIMES} steps, CPU time of one core. {machine.sentence('torch')}"


if __name__ == "__main__":
    huge_pages.start()  # as torchtally has them
    torch.set_num_threads(1)
    for line in table():
        print(line)
