"""Throughput of one tool in one task on one device, as a part of `make bench-gpu`.

gpu TOOL TASK    e.g. gpu torchtally gpt; BENCH_DEVICE is cuda, or cpu with little data to rehearse
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import pack, processes
from bench.measure import throughput
from bench.sample import emit

TOOLS = {
    "fashion-mnist": ("torchtally", "by hand", "blog"),
    "gpt": ("torchtally", "blog", "accelerate", "lightning"),
    "gpt-fsdp2": ("torchtally", "blog", "lightning"),
    "image-folder-64": ("torchtally", "accelerate", "lightning"),
    "image-folder-224": ("torchtally", "accelerate", "lightning"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How much of a task a device is given.

    Attributes:
        steps: Steps of a peer after its warm-up.
        epochs: Epochs of torchtally and of the loop by hand after the first; with `seconds`, at most.
        seconds: Seconds of torchtally in place of epochs.
        batch: Samples of a step, except of a GPT.
        gpt: Sizes of a GPT.
        images: Files to train with.
    """

    steps: int
    epochs: int = 100
    seconds: float | None = None
    batch: int = 32
    gpt: Mapping[str, int] = field(default_factory=dict)
    images: int = 0


_GPT = {"layers": 12, "width": 768, "heads": 12, "length": 256, "batch": 16}  # the smallest GPT-2, fewer tokens
CASES = {
    "cuda": {
        "fashion-mnist": Case(steps=600, epochs=9),
        "gpt": Case(steps=150, gpt=_GPT),
        "gpt-fsdp2": Case(steps=150, gpt=_GPT),
        # An epoch of these takes longer than the seconds.
        "image-folder-64": Case(steps=200, seconds=3, batch=256, images=96_000),
        "image-folder-224": Case(steps=100, seconds=3, batch=128, images=40_000),
    },
    "cpu": {
        "fashion-mnist": Case(steps=40, epochs=1),
        "gpt": Case(steps=10),
        "gpt-fsdp2": Case(steps=10),
        # A CPU without bfloat16 takes seconds for a few images.
        "image-folder-64": Case(steps=4, seconds=1, batch=4, images=960),
        "image-folder-224": Case(steps=2, seconds=1, batch=2, images=320),
    },
}


def main() -> None:
    tool, task = sys.argv[1:]
    device = os.environ["BENCH_DEVICE"]
    case = CASES[device][task]
    os.environ |= {"BENCH_BATCH": str(case.batch), "BENCH_GPT": json.dumps(case.gpt)}
    if task.startswith("gpt"):
        os.environ["TORCHTALLY_DATA"] = str(pack.TEXT)
    elif task.startswith("image-folder"):
        os.environ["TORCHTALLY_CACHE"] = str(_linked(task, case.images))
    speed = _own(task, case, device) if tool == "torchtally" else _peers(tool, task, case, device)
    scale, unit = (case.gpt.get("length", 64), "tokens/s") if task.startswith("gpt") else (1, "samples/s")
    emit("throughput", speed * scale, unit, "higher", task=task, world=1, tool=tool)


def _own(task: str, case: Case, device: str) -> float:
    name, options = task, ["--batch-size", str(case.batch)]
    if task.startswith("gpt"):  # a loop of a user's own
        loop = [*throughput.TORCHTALLY, "run", "--", sys.executable, *_script("gpt_tallied", task, case)]
        own = {"PET_NPROC_PER_NODE": "1", "TORCHTALLY_DEVICE": device}
        result = throughput.told(loop, throughput.environment(device) | own)
        return result["samples"] / result["seconds"]
    if task.startswith("image-folder"):
        name, _, size = task.rpartition("-")
        options += ["--size", size, "--data", str(Path(os.environ["TORCHTALLY_CACHE"], "bench", task))]
    speed, _ = throughput.ours(name, 1, options, device, 1 + case.epochs, case.seconds)
    return speed


def _peers(tool: str, task: str, case: Case, device: str) -> float:
    """One process without a launcher, as each tool's documentation starts it on one GPU."""
    if tool == "by hand":
        script = ["-m", "bench.peers.by_hand", os.environ["TORCHTALLY_CACHE"], str(case.epochs)]
    else:
        script = _script(f"{'gpt_' * task.startswith('gpt')}{throughput.PEERS[tool]}", task, case)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_port())}
    result = throughput.result_of(script, device)
    return result["samples"] / result["seconds"]


def _script(name: str, task: str, case: Case) -> list[str]:
    return ["-m", f"bench.peers.{name}", task, os.environ["TORCHTALLY_CACHE"], str(case.steps)]


def _linked(task: str, images: int) -> Path:
    """A cache in which the images that were carried have more names: a GPU takes more of them than can be carried."""
    cache, carried = pack.MADE / f"linked-{images}", pack.CACHE / "bench" / task
    root = cache / "bench" / task
    if root.exists():
        return cache
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(carried / "val", part / "val", copy_function=os.link)
    classes = sorted((carried / "train").iterdir())
    for each in classes:
        files = sorted(each.iterdir())
        (part / "train" / each.name).mkdir(parents=True)
        for number in range(images // len(classes)):
            os.link(files[number % len(files)], part / "train" / each.name / f"{number:05}.jpg")
    part.rename(root)
    return cache


if __name__ == "__main__":
    main()
