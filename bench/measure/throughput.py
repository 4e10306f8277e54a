"""Throughput of one tool, and the seconds from the command to the first step.

throughput TOOL TASK WORLD    e.g. torchtally fashion-mnist 2
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.model import BATCH
from bench.sample import emit
from torchtally import events
from torchtally.environment import Places

PEERS = {"blog": "blog", "accelerate": "with_accelerate", "lightning": "with_lightning"}
TOOLS = ("torchtally", *PEERS)
WORLDS = (1, 2, 4)
# Steps of a peer's loop on one rank: a few seconds. All worlds have the same number of samples.
_STEPS = {"fashion-mnist": 600, "mnist-cnn": 600, "keras-mnist": 300}


def main() -> None:
    tool, task, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
    speed, first_step = ours(task, world) if tool == "torchtally" else _peers(tool, task, world)
    emit("throughput", speed, "samples/s", "higher", task=task, world=world, tool=tool)
    emit("first step", first_step, "s", "lower", task=task, world=world, tool=tool)


def ours(
    task: str, world: int, batch: Sequence[str] = ("--batch-size", str(BATCH)), device: str = "cpu", epochs: int = 1
) -> tuple[float, float]:
    """Samples per second in the last epoch, and seconds to the first step, from the events of the entry point."""
    speed = first_step = 0.0
    with tempfile.TemporaryDirectory() as output:
        began = time.time()
        command = [str(Path(sys.executable).with_name("torchtally")), "run", task, "--epochs", str(epochs)]
        with subprocess.Popen(
            [*command, *batch, "--output", output],
            env=_environment(device) | {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": device},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for record in events.in_lines(process.stdout):
                match record.event:
                    case events.Step():
                        first_step = record.time - began
                    case events.Epoch(samples_per_second=speed):
                        pass
    if process.returncode or not speed or not first_step:
        sys.exit(f"torchtally run {task} ended with {process.returncode}, without a speed")
    return speed, first_step


def _peers(tool: str, task: str, world: int) -> tuple[float, float]:
    began = time.time()
    result = torchrun(tool, task, world)
    return result["samples"] / result["seconds"], result["first_step"] - began


def torchrun(tool: str, task: str, world: int, device: str = "cpu") -> dict[str, float]:
    """The result of a peer's script with `world` ranks on `device`."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
    data = str(Places.from_env(os.environ).cache)
    return result_of([*launch, f"bench.peers.{PEERS[tool]}", task, data, str(_STEPS[task] // world)], device)


def result_of(arguments: Sequence[str], device: str) -> dict[str, float]:
    """The line of JSON that a Python program with these arguments prints."""
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=_environment(device), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    return found


def _environment(device: str) -> dict[str, str]:
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    return os.environ | {"OMP_NUM_THREADS": "1", "BENCH_DEVICE": device, **hidden}


if __name__ == "__main__":
    main()
