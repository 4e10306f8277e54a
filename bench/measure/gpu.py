"""Training on one GPU: samples a second of torchtally, of a few lines by hand without a tally, and of the blog's loop.

gpu    where PyTorch finds no GPU it measures nothing
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
    """Each tool's samples a second on `device`: batch 32, one rank."""
    speed, _ = throughput.ours("fashion-mnist", 1, device=device, epochs=3)
    yield "torchtally", speed
    data = str(Places.from_env(os.environ).cache)
    for tool, said in (
        ("by hand", throughput.told(["-m", "bench.peers.by_hand", data], device)),
        ("blog", throughput.torchrun("blog", "fashion-mnist", 1, device)),
    ):
        yield tool, said["samples"] / said["seconds"]


if __name__ == "__main__":
    main()
