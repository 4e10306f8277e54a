"""Start and memory of the ranks of a user's script, beside plain torchrun.

python -m bench.measure.ranks    prints a table of all cases
ranks WORLD                      measures torchrun and torchtally once, as a part of `make bench`

Each rank imports torch, makes a model in DDP over gloo, and takes a step. Memory is what it alone has, USS. The CPU
time is that of the whole job, which other programs on the machine disturb least.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import machine
from bench.markdown import markdown, shown
from bench.sample import emit
from bench.spread import spread

WORLDS = (1, 2, 4)
TIMED = (1, 4)  # of these, by `make bench`
_ROUNDS = 5
_SCRIPT = """
import json, os, time
import psutil, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model(torch.ones(32, 512)).sum().backward()
optimizer.step()
done = time.time()
dist.barrier()
told = [None] * dist.get_world_size()
dist.all_gather_object(told, [done, psutil.Process().memory_full_info().uss])
if dist.get_rank() == 0:
    print(json.dumps(told), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
_OWN = [str(Path(sys.executable).with_name("torchtally")), "run"]
_WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--standalone"], {}),
    "torchtally, `TORCHTALLY_FORK=never`": (_OWN, {"TORCHTALLY_FORK": "never"}),
    "torchtally": (_OWN, {}),
}


def main() -> None:
    if not sys.argv[1:]:
        for line in table():
            print(line, flush=True)
        return
    world = int(sys.argv[1])
    for tool in ("torchtally", "torchrun"):
        seconds, _, _ = measured(tool, world)
        emit("own script, first step", seconds, "s", "lower", world=world, tool=tool)


def measured(way: str, world: int) -> tuple[float, float, float]:
    """Seconds from the command to the last rank's first step, CPU seconds of the job, and MB of a rank for itself."""
    launcher, more = _WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "step.py"
        script.write_text(_SCRIPT)
        own = {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        began, before = time.time(), _cpu_seconds()
        ended = subprocess.run(
            [*launcher, str(script)],
            env=os.environ | own | more | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
    told = next((line for line in ended.stdout.splitlines() if line.startswith("[[")), None)
    # Ranks of torchrun abort at exit now and then, after their step: pytorch#190489.
    if told is None or (launcher is _OWN and ended.returncode):
        sys.exit(f"{way} ended with {ended.returncode}")
    ranks = json.loads(told)
    memory = sum(own for _, own in ranks) / len(ranks) / 1e6
    return max(done for done, _ in ranks) - began, _cpu_seconds() - before, memory


def table() -> Iterator[str]:
    """The lines of the table. The ways take turns, because a slow phase of the machine affects all."""
    cases = [(world, way) for world in WORLDS for way in _WAYS]
    found: dict[tuple[int, str], list[tuple[float, float, float]]] = {case: [] for case in cases}
    for _ in range(_ROUNDS):
        for world, way in cases:
            found[world, way].append(measured(way, world))
    rows = [
        [str(world), way, *(shown(spread(values)) for values in zip(*found[world, way], strict=True))]
        for world, way in cases
    ]
    header = ["ranks", "started by", "first step, s", "CPU time of the job, s", "memory of a rank alone, MB"]
    yield from markdown(header, rows, left=(1,))
    yield ""
    yield f"Medians of {_ROUNDS} rounds, with the minimum and the maximum in brackets. {machine.sentence('torch')}"


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
