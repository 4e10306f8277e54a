"""Samples or tokens per second of all tools, and the seconds from the command to the first step of one.

throughput TASK[/WORLD] [...]     all tools of a task in turn, in all worlds; the ranks of peers are forked
throughput TOOL TASK WORLD        the first step of one, whose peers' ranks torchrun starts
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.huge_pages import TUNABLES
from bench.limit import BATCH
from bench.sample import emit
from torchtally import events
from torchtally.environment import Places
from torchtally.errors import SIGNALLED

PEERS = {"blog": "blog", "accelerate": "with_accelerate", "lightning": "with_lightning"}
TOOLS = ("torchtally", *PEERS)
WORLDS = (1, 2, 4)


@dataclass(frozen=True)
class Compared:
    """How a task is compared."""

    steps: int  # of a peer's loop on one rank: seconds. All worlds have the same number of samples
    tools: Sequence[str] = TOOLS
    worlds: Sequence[int] = WORLDS
    epochs: int = 1  # of torchtally, of which the last counts without `seconds`
    seconds: float | None = None  # of torchtally, in place of an epoch that takes longer


TASKS = {
    "fashion-mnist": Compared(400),
    "mnist-cnn": Compared(300),
    # Accelerate and Lightning would take a minute of each round.
    "keras-mnist": Compared(150, tools=("torchtally", "blog"), seconds=2),
    "gpt-ddp": Compared(80),
    # Accelerate shards no model on CPUs.
    "gpt-fsdp2": Compared(80, tools=("torchtally", "blog", "lightning")),
    "image-folder-64": Compared(24, tools=("torchtally", "accelerate", "lightning"), worlds=(1, 2), seconds=2),
    "image-folder-224": Compared(4, tools=("torchtally", "accelerate", "lightning"), worlds=(1, 2), seconds=4),
}
_TOKENS = 64  # of a sample of a GPT
_SCRIPT = Path(sys.executable).with_name("torchtally")
TORCHTALLY = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-m", "torchtally.cli"]  # not installed there


def main() -> None:
    os.environ |= environment("cpu")  # before PyTorch is imported
    match sys.argv[1:]:
        case [tool, task, world] if tool in TOOLS:
            _emit_first_step(measured(tool, task, int(world))[1], tool, task, int(world))
        case cases:
            for task, _, world in (case.partition("/") for case in cases):
                for number in [int(world)] if world else TASKS[task].worlds:
                    for tool in TASKS[task].tools:
                        _measure(tool, task, number)


def _measure(tool: str, task: str, world: int) -> None:
    speed, first_step = measured(tool, task, world, started=False)
    scale, unit = (_TOKENS, "tokens/s") if task.startswith("gpt") else (1, "samples/s")
    emit("throughput", speed * scale, unit, "higher", task=task, world=world, tool=tool)
    if first_step:
        _emit_first_step(first_step, tool, task, world)


def _emit_first_step(seconds: float, tool: str, task: str, world: int) -> None:
    emit("first step", seconds, "s", "lower", task=task, world=world, tool=tool)


def measured(tool: str, task: str, world: int, started: bool = True) -> tuple[float, float]:
    """Samples per second, and seconds to the first step."""
    return _own(task, world) if tool == "torchtally" else _peers(tool, task, world, started)


def _own(task: str, world: int) -> tuple[float, float]:
    epochs, seconds = TASKS[task].epochs, TASKS[task].seconds
    if task.startswith("gpt"):  # a loop of a user's own
        own = {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": "cpu", "GLIBC_TUNABLES": TUNABLES}
        loop = [*TORCHTALLY, "run", "--", sys.executable, "-m", *_script("tallied", task, world)]
        result = told(loop, environment("cpu") | own)
        return result["samples"] / result["seconds"], 0.0
    if task.startswith("image-folder"):
        from bench.peers import images  # imports torchvision

        folder = images.folder(Places.from_env(os.environ).cache, task)
        options = ("--size", str(images.SIZES[task]), "--data", str(folder))
        return ours("image-folder", world, options, seconds=seconds)
    return ours(task, world, epochs=epochs, seconds=seconds)


def ours(
    task: str,
    world: int,
    options: Sequence[str] = ("--batch-size", str(BATCH)),
    device: str = "cpu",
    epochs: int = 1,
    seconds: float | None = None,
) -> tuple[float, float]:
    """Samples per second, and seconds to the first step, from the events of the entry point.

    The speed is that of the median epoch after the first, if there are more. With `seconds`, it is that of so many
    seconds after the first one, and the training ends there.
    """
    first_step, reports, cause = 0.0, 0, "no cause is known"
    speeds: list[float] = []
    own = {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": device, "GLIBC_TUNABLES": TUNABLES}
    if seconds:
        own["TORCHTALLY_PROGRESS_SECONDS"] = str(seconds)
    with tempfile.TemporaryDirectory() as output:
        began = time.time()
        with subprocess.Popen(
            [*TORCHTALLY, "run", task, "--epochs", str(epochs), *options, "--output", output],
            env=environment(device) | own,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for record in events.in_lines(process.stdout):
                match record.event:
                    case events.Step():
                        first_step = record.time - began
                    case events.Epoch(samples_per_second=speed) if reports < 2:
                        speeds.append(speed)
                    case events.Ended(cause=str(cause)):
                        pass
                    case events.Progress(samples_per_second=reported) if seconds:
                        reports += 1
                        if reports == 2:  # the first comes after a second
                            speeds = [reported]
                            process.terminate()
    ended_well = process.returncode == (SIGNALLED + signal.SIGTERM if reports >= 2 else 0)
    if not (ended_well and speeds and first_step):
        sys.exit(f"torchtally run {task} ended with {process.returncode}, without a speed: {cause}")
    return median(speeds[1:] or speeds), first_step


def _peers(tool: str, task: str, world: int, started: bool) -> tuple[float, float]:
    began = time.time()
    result = torchrun(tool, task, world) if started else _forked(tool, task, world)
    return result["samples"] / result["seconds"], (result["first_step"] - began) * started


def torchrun(tool: str, task: str, world: int, device: str = "cpu") -> dict[str, float]:
    """The result of a peer's script with `world` ranks on `device`."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
    return result_of([*launch, *_script(PEERS[tool], task, world)], device)


def _forked(tool: str, task: str, world: int) -> dict[str, float]:
    """The same, with forks of the process of a library as ranks."""
    from bench.peers import forked

    module, *arguments = _script(PEERS[tool], task, world)
    library = "keras_model" if task == "keras-mnist" else PEERS[tool]
    return line(forked.run(f"bench.peers.{library}", module, world, arguments))


def _script(name: str, task: str, world: int) -> list[str]:
    """A module of bench.peers and its arguments."""
    module = f"bench.peers.{'gpt_' * task.startswith('gpt')}{name}"
    return [module, task, str(Places.from_env(os.environ).cache), str(TASKS[task].steps // world)]


def result_of(arguments: Sequence[str], device: str) -> dict[str, float]:
    """The line of JSON that a Python program with these arguments prints."""
    return told([sys.executable, *arguments], environment(device))


def told(command: Sequence[str], variables: dict[str, str]) -> dict[str, float]:
    """The line of JSON that a program prints."""
    return line(subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout)


def line(printed: str) -> dict[str, float]:
    """The line of JSON in what a program has printed."""
    found: dict[str, float] = json.loads(next(each for each in printed.splitlines() if each.startswith("{")))
    return found


def environment(device: str) -> dict[str, str]:
    """The variables of a program that is measured on `device`."""
    # Beside a GPU nobody limits the threads of one rank.
    own = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return os.environ | {"BENCH_DEVICE": device, **own}


if __name__ == "__main__":
    main()
