"""What a CUDA graph replays, compared to the bit, as a part of `make bench-gpu`.

gpu_exact captured    a training with steps in a CUDA graph, beside one with plain steps
gpu_exact dropout     the same with dropout; its speed does not count

BENCH_DEVICE is cuda, or cpu to rehearse. A difference fails the program.
"""

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.peers import common
from bench.sample import emit
from torchtally import tasks
from torchtally.datasets import idx
from torchtally.environment import Places
from torchtally.training.cuda_graph import Captured, CudaGraph, Graph, Step

_STEPS = {"cuda": 1875, "cpu": 40}


class Again:
    """In place of CUDA's graph in a rehearsal: it does the work again."""

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


def captured(device: torch.device, dropout: float) -> None:
    """Train twice on the same batches; the last one has fewer rows, and is not replayed."""
    images, labels, *_ = idx.load(idx.FASHION_MNIST, None, Places.from_env(os.environ).cache)
    pixels, kinds = images.to(device), labels.long().to(device)
    graph: Graph = CudaGraph(device) if device.type == "cuda" else Again()
    found = [
        _trained(device, pixels, kinds, dropout, way)
        for way in (lambda step: step, lambda step: Captured(step, common.BATCH, graph, device))
    ]
    (plain, plain_speed), (replayed, speed) = found
    for name, weights in plain.items():
        if not torch.equal(weights, replayed[name]):
            far = (weights - replayed[name]).abs().max().item()
            sys.exit(f"{name} differs by up to {far:.3g} between replayed steps and plain ones")
    if not dropout:
        emit("captured step", speed, "samples/s", "higher", what="replayed")
        emit("captured step", plain_speed, "samples/s", "higher", what="plain")


def _trained(
    device: torch.device, pixels: Tensor, labels: Tensor, dropout: float, way: Callable[[Step], Step]
) -> tuple[dict[str, Tensor], float]:
    """The weights, and the samples per second of the second half."""
    options = tasks.OPTIONS["fashion-mnist"]()
    task = tasks.load("fashion-mnist", options)
    torch.manual_seed(0)
    layers = [*task.model(options).children()]
    if dropout:
        layers.insert(-1, nn.Dropout(dropout))
    model = nn.Sequential(*layers).to(device)
    optimizer = task.optimizer(model.parameters(), options)

    def step(chosen: Tensor, scale: float) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(task.inputs(pixels[chosen])), labels[chosen], reduction="sum")
        (loss * scale).backward()
        optimizer.step()
        return loss.detach()

    taken, steps = way(step), _STEPS[device.type]
    batches = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))[: steps * common.BATCH - 5]
    began = 0.0
    for number, chosen in enumerate(batches.to(device).split(common.BATCH)):
        if number == steps // 2:
            began = common.now()
        torch.manual_seed(number)  # all generators, as the loop does
        taken(chosen, 1 / len(chosen))
    speed = (steps - steps // 2) * common.BATCH / (common.now() - began)
    return {name: value.clone() for name, value in model.state_dict().items()}, speed


def main() -> None:
    torch.set_num_threads(1)
    device = common.device()
    if device.type == "cuda":
        device = torch.device("cuda", 0)
    match sys.argv[1:]:
        case ["captured"]:
            captured(device, 0.0)
        case ["dropout"]:
            captured(device, 0.5)


if __name__ == "__main__":
    main()
