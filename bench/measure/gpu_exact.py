"""What a device computes beside its samples, compared to the bit, as a part of `make bench-gpu`.

gpu_exact order       the order of samples, beside numpy's on one core
gpu_exact digest      their digest, beside numpy's on one core
gpu_exact captured    a training with steps in a CUDA graph, beside one with plain steps
gpu_exact dropout     the same with dropout; its speed does not count

BENCH_DEVICE is cuda, or cpu to rehearse. A difference fails the program.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.peers import common
from bench.sample import emit
from torchtally import tasks
from torchtally.accounting.order import cuda
from torchtally.datasets import idx
from torchtally.environment import Places
from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Shard
from torchtally.training.cuda_graph import Captured, CudaGraph, Graph, Step

R = TypeVar("R")
# Both sides of where the order's network has more rounds, and a rank among several with a repeated sample at its end.
_SHARDS = [
    *(Shard(n=n, rank=0, world=1, order="feistel-1", seed=7) for n in (60_000, 10**9, 10**12)),
    Shard(n=60_001, rank=7, world=8, contract="padded", order="feistel-1", seed=2**62, epoch=3),
]
_TIMED = _SHARDS[1]
_DEVICES, _CORES = 1 << 20, 1 << 15  # indices at a time, as in a training on a GPU and on a CPU
_INDICES = {"cuda": 1 << 25, "cpu": 1 << 21}  # of each shard, if it has so many
_STEPS = {"cuda": 1875, "cpu": 40}
_G = digest.base("a run")


class Again:
    """In place of CUDA's graph in a rehearsal: it does the work again."""

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


def order(device: torch.device) -> None:
    for shard in _SHARDS:
        for begin, end in _parts(shard, _DEVICES, device):
            ours, numpys = cuda.indices(shard, begin, end, device), shard.indices(begin, end)
            _equal(f"the order of {shard}", ours, numpys, begin)
            _equal(f"the inverse of {shard}", cuda.positions_of(ours, shard), shard.positions(begin, end), begin)
    on_device = _rate(_DEVICES, device, lambda begin, end: cuda.indices(_TIMED, begin, end, device))
    on_core = _rate(_CORES, device, _TIMED.indices)
    _emit("order", on_device, on_core)


def digests(device: torch.device) -> None:
    def of_device(indices: Tensor, shard: Shard) -> Digest:
        return cuda.digest_of(cuda.positions_of(indices, shard), indices, _G)

    def of_core(indices: Indices, shard: Shard) -> Digest:
        return digest.of_samples(shard.positions_of(indices), indices, _G)

    for shard in _SHARDS:
        for begin, end in _parts(shard, _DEVICES, device):
            indices = shard.indices(begin, end)
            jumbled = indices[::-1].copy()[: 1 << 12]  # a rank's own are in steps, and take a shorter way
            for some in (indices, jumbled):
                found, expected = of_device(torch.from_numpy(some).to(device), shard), of_core(some, shard)
                if found != expected:
                    sys.exit(f"the digest of samples {begin} to {end} of {shard} is {found}, and numpy's {expected}")
    whole = _TIMED.indices(0, _DEVICES)
    there = torch.from_numpy(whole).to(device)
    on_device = _rate(_DEVICES, device, lambda begin, end: of_device(there, _TIMED))
    on_core = _rate(_CORES, device, lambda begin, end: of_core(whole[:_CORES], _TIMED))
    _emit("digest", on_device, on_core)


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


def _parts(shard: Shard, length: int, device: torch.device) -> Iterator[tuple[int, int]]:
    end = min(shard.size, _INDICES[device.type])
    yield from ((begin, min(begin + length, end)) for begin in range(0, end, length))


def _equal(what: str, ours: Tensor, numpys: Indices, begin: int) -> None:
    found = ours.cpu().numpy()
    if found.shape != numpys.shape:
        sys.exit(f"{what} has {len(found)} samples from number {begin} on, and numpy's {len(numpys)}")
    if len(different := np.flatnonzero(found != numpys)):
        at = int(different[0])
        sys.exit(f"{what}: sample number {begin + at} is {found[at]}, and numpy's {numpys[at]}")


def _rate(length: int, device: torch.device, function: Callable[[int, int], R]) -> float:
    """Millions of indices per second, `length` at a time."""
    parts = [*_parts(_TIMED, length, device)]
    function(*parts[0])
    began = common.now()
    for part in parts:
        function(*part)
    return len(parts) * length / (common.now() - began) / 1e6


def _emit(measure: str, on_device: float, on_core: float) -> None:
    emit(measure, on_device, "million/s", "higher", by="the device")
    emit(measure, on_core, "million/s", "higher", by="numpy, one core")


def main() -> None:
    torch.set_num_threads(1)
    device = common.device()
    if device.type == "cuda":
        device = torch.device("cuda", 0)
    match sys.argv[1:]:
        case ["order"]:
            order(device)
        case ["digest"]:
            digests(device)
        case ["captured"]:
            captured(device, 0.0)
        case ["dropout"]:
            captured(device, 0.5)


if __name__ == "__main__":
    main()
