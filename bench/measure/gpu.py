"""Training on one GPU: samples a second of torchtally, of a few lines by hand without a tally, and of the blog's loop.

gpu    where PyTorch finds no GPU it measures nothing
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import torch

from bench.measure import throughput
from bench.sample import emit
from torchtally.job import Places

_STEPS = 600  # of the blog's loop


def main() -> None:
    if torch.cuda.is_available():
        for tool, speed in measured("cuda"):
            emit("throughput on a GPU", speed, "samples/s", "higher", tool=tool)


def measured(device: str) -> Iterator[tuple[str, float]]:
    """Each tool's samples a second on `device`: batch 32, one rank."""
    data = str(Places.from_env(os.environ).cache)
    speed, _ = throughput.ours("fashion-mnist", 1, device=device, epochs=3)
    yield "torchtally", speed
    yield "by hand", _peers(device, "-m", "bench.peers.by_hand", data)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    yield "blog", _peers(device, *torchrun, "-m", "bench.peers.blog", "fashion-mnist", data, str(_STEPS))


def _peers(device: str, *arguments: str) -> float:
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"BENCH_DEVICE": device},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("{")))
    speed: float = told["samples"] / told["seconds"]
    return speed


if __name__ == "__main__":
    main()
