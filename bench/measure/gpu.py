"""Throughput on one GPU: of torchtally, of a minimal loop without a tally, and of the blog's loop.

gpu    measures nothing if PyTorch finds no GPU
"""

import os
from collections.abc import Iterator

import torch

from bench.measure import throughput
from bench.sample import emit
from torchtally.environment import Places


def main() -> None:
    if torch.cuda.is_available():
        for tool, speed in measured("cuda"):
            emit("throughput on a GPU", speed, "samples/s", "higher", tool=tool)


def measured(device: str) -> Iterator[tuple[str, float]]:
    """Samples per second of each tool on `device`, with batches of 32 and one rank."""
    speed, _ = throughput.ours("fashion-mnist", 1, device=device, epochs=3)
    yield "torchtally", speed
    data = str(Places.from_env(os.environ).cache)
    for tool, result in (
        ("by hand", throughput.result_of(["-m", "bench.peers.by_hand", data], device)),
        ("blog", throughput.torchrun("blog", "fashion-mnist", 1, device)),
    ):
        yield tool, result["samples"] / result["seconds"]


if __name__ == "__main__":
    main()
