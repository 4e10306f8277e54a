"""Scaling to WORLD ranks: weak (32 samples for each rank) and strong (256 for all), and gloo's all-reduces.

scaling WORLD    one of bench.model.WORLDS; `throughput` measures the weak scaling of some of them

The ranks of a training are in one pod and sum their gradients in shared memory. The all-reduces are those of pods with
one rank each, over loopback: of the gradient, and of a single number, which costs messages alone.
"""

import multiprocessing
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.measure import throughput
from bench.model import BATCH, GLOBAL_BATCH, GRADIENT
from bench.sample import emit

_WARM_UP, _TIMES = 10, 100
_FLOAT = 4  # bytes


def main() -> None:
    world = int(sys.argv[1])
    if world > 1:
        for size, seconds in all_reduces(world).items():
            emit("all-reduce", 1e3 * seconds, "ms", "lower", world=world, bytes=size)
    together = ["--global-batch-size", str(GLOBAL_BATCH)]
    strong, _ = throughput.ours("fashion-mnist", world, together)
    emit("scaling", strong, "samples/s", "higher", kind="strong", world=world)
    if world * BATCH == GLOBAL_BATCH:  # weak and strong scaling have the same steps
        emit("scaling", strong, "samples/s", "higher", kind="weak", world=world)
    elif world not in throughput.WORLDS:
        weak, _ = throughput.ours("fashion-mnist", world)
        emit("scaling", weak, "samples/s", "higher", kind="weak", world=world)


def all_reduces(world: int) -> dict[int, float]:
    """Mean seconds of an all-reduce of `world` processes, by its size in bytes."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "ranks"))
        forked = multiprocessing.get_context("fork")  # avoids an import of torch in each
        others = [forked.Process(target=_rank, args=(rank, world, meeting), daemon=True) for rank in range(1, world)]
        for other in others:
            other.start()
        seconds = _rank(0, world, meeting)
        for other in others:
            other.join()
    if any(other.exitcode for other in others):
        sys.exit("a rank of the all-reduce has failed")
    return seconds


def _rank(rank: int, world: int, meeting: str) -> dict[int, float]:
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    seconds = {size: _mean_seconds(torch.zeros(size // _FLOAT)) for size in (_FLOAT, GRADIENT)}
    dist.destroy_process_group()
    return seconds


def _mean_seconds(numbers: torch.Tensor) -> float:
    for _ in range(_WARM_UP):
        dist.all_reduce(numbers)
    began = time.perf_counter()
    for _ in range(_TIMES):
        dist.all_reduce(numbers)
    return (time.perf_counter() - began) / _TIMES


if __name__ == "__main__":
    main()
