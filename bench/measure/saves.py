"""How long a training is held by a save of its checkpoint: a table for examples/gpt.py, which saves in the background.

python -m bench.measure.saves      prints the table
saves worker OPTIONS of gpt.py     is a rank of the measured training

The loop waits while it collects the objects' states and copies them: `held`. A thread then writes the copy. Where no
core is free, it takes up to its CPU time from the loop: `at most` adds this. Other programs hardly change CPU time.
"""

import functools
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine
from bench.markdown import markdown, shown
from bench.spread import spread
from torchtally import events

_SAVES = 6  # of which the first, which allocates memory, does not count
_SIZES = {"0.1": "--width 64 --layers 2", "6": "--width 256 --layers 8 --length 32 --batch 2"}  # million parameters
_WORLDS = (1, 2)
_EVERY = 6.0  # seconds
_MINUTE = 60


def worker(options: list[str]) -> None:
    """Train with timers around each save, and print what they took."""
    from torchtally.checkpoints.checkpoints import Checkpoints
    from torchtally.checkpoints.writer import Writer

    begin, write = Checkpoints._begin, Writer._write
    saves: list[dict[str, float]] = []

    @functools.wraps(begin)
    def began(checkpoints: Any) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        saves.append({})
        begin(checkpoints)
        saves[-1] |= {"held": time.perf_counter() - wall, "held, CPU": time.thread_time() - cpu}

    @functools.wraps(write)
    def wrote(*arguments: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        written = write(*arguments)
        saves[-1] |= {"writing": time.perf_counter() - wall, "writing, CPU": time.thread_time() - cpu}
        return written

    Checkpoints._begin, Writer._write = began, wrote  # type: ignore[assignment,method-assign]
    script = Path("examples/gpt.py")
    sys.argv = [str(script), *options]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        if os.environ["RANK"] == "0":
            print(json.dumps({"saves": saves[1:_SAVES]}), flush=True)


def measured(options: str, world: int) -> list[dict[str, float]]:
    """What rank 0's saves took, in a training that ends with a signal after `_SAVES` of them."""
    with tempfile.TemporaryDirectory() as output:
        rank = [sys.executable, "-m", "bench.measure.saves", "worker", *options.split(), "--steps", "1000000"]
        command = [str(Path(sys.executable).with_name("torchtally")), "run", "--", *rank]
        own = {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
        more = ["--save-every", f"{_EVERY}s", "--output", output]
        found: list[dict[str, float]] = []
        with subprocess.Popen([*command, *more], env=os.environ | own, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            saved = 0
            for line in job.stdout:
                record = events.read(line)
                if record and isinstance(record.event, events.Saved):
                    saved += 1
                    if saved == _SAVES:
                        job.send_signal(signal.SIGTERM)
                if line.startswith('{"saves"'):
                    found = json.loads(line)["saves"]
    return found


def table() -> Iterator[str]:
    columns = ["held", "held, CPU", "writing", "writing, CPU"]
    header = ["million parameters", "ranks", *(f"{name}, ms" for name in columns), "held, % of a minute", "at most, %"]
    yield from markdown([*header, "saves"], [], left=())
    for (size, options), world in itertools.product(_SIZES.items(), _WORLDS):
        found = measured(options, world)
        times = [[1e3 * each[name] for each in found] for name in columns]
        held = [100 * each["held"] / _MINUTE for each in found]
        most = [100 * (each["held"] + each["writing, CPU"]) / _MINUTE for each in found]
        values = [size, str(world), *(shown(spread(each)) for each in (*times, held, most)), str(len(found))]
        yield f"| {' | '.join(values)} |"
    yield ""
    yield f"Medians of the saves, with the minimum and the maximum in brackets. {machine.sentence('torch')}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2:])
    else:
        for line in table():
            print(line, flush=True)
