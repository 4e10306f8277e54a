"""How long a training is held by a save of its checkpoint: a table for examples/gpt.py, which saves in the background.

python -m bench.measure.saves      prints the table
saves worker OPTIONS of gpt.py     is a rank of the measured training

"Held" is the time for which the loop waits: it collects the objects' states and copies them. "Slower" is by how much
the steps take longer, added up, while a thread writes the copy.
"""

import functools
import itertools
import json
import os
import platform
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.markdown import markdown, shown
from bench.spread import spread
from torchtally import events

_SAVES = 6  # of which the first, which allocates memory, does not count
_SIZES = {"0.1": "--width 64 --layers 2", "6": "--width 256 --layers 8 --length 32 --batch 2"}  # million parameters
_WORLDS = (1, 2)
_EVERY = 6.0  # seconds
_FIRST = 5  # commits that do not count
_MINUTE = 60


class Timers:
    """When a rank's loop committed, and when it was saved."""

    def __init__(self) -> None:
        self.commits: list[float] = []
        self.saves: list[dict[str, float]] = []
        self.stopped = False

    def attach(self) -> None:
        from torchtally.checkpoints.checkpoints import Checkpoints

        kind: Any = Checkpoints
        after_commit, begin, write, stop = kind.after_commit, kind._begin, kind._write, kind._stop_together

        @functools.wraps(after_commit)
        def committed(checkpoints: Any) -> None:
            self.commits.append(time.perf_counter())
            after_commit(checkpoints)

        @functools.wraps(begin)
        def began(checkpoints: Any) -> None:
            at, cpu = time.perf_counter(), time.thread_time()
            if not self.stopped:
                self.saves.append({"at": at})
            begin(checkpoints)
            if not self.stopped:
                self.saves[-1] |= {"held": time.perf_counter() - at, "cpu": time.thread_time() - cpu}

        @functools.wraps(write)
        def wrote(*arguments: Any) -> Any:
            written, save = write(*arguments), None if self.stopped else self.saves[-1]
            if save is not None:
                save["end"] = time.perf_counter()
            return written

        @functools.wraps(stop)
        def stopped(*arguments: Any) -> None:
            self.stopped = True
            stop(*arguments)

        kind.after_commit, kind._begin, kind._write, kind._stop_together = committed, began, wrote, stopped

    def found(self) -> list[dict[str, float]]:
        """For each save the seconds for which the loop was held, the steps were slower, and the thread wrote."""
        whole = [save for save in self.saves if "end" in save]
        steps = list(zip(self.commits[_FIRST:-1], self.commits[_FIRST + 1 :], strict=True))

        def during(step: tuple[float, float], save: dict[str, float]) -> bool:
            return step[0] < save["end"] and step[1] > save["at"]

        usual = median(end - begin for begin, end in steps if not any(during((begin, end), save) for save in whole))
        return [
            {
                "held": save["held"],
                "cpu": save["cpu"],
                "slower": sum(end - begin - usual for begin, end in steps if during((begin, end), save)) - save["held"],
                "writing": save["end"] - save["at"],
                "step": usual,
            }
            for save in whole[1:]
        ]


def worker(options: list[str]) -> None:
    timers = Timers()
    timers.attach()
    script = Path("examples/gpt.py")
    sys.argv = [str(script), *options]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        if os.environ["RANK"] == "0":
            print(json.dumps({"saves": timers.found()}), flush=True)


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
    header = ["million parameters", "ranks", "step, ms", "held, ms", "its CPU time, ms", "slower, ms", "writing, ms"]
    yield from markdown([*header, "share, %", "saves"], [], left=())
    for (size, options), world in itertools.product(_SIZES.items(), _WORLDS):
        found = measured(options, world)
        times = {name: [1e3 * each[name] for each in found] for name in ("step", "held", "cpu", "slower", "writing")}
        shares = [100 * (each["held"] + max(0, each["slower"])) / _MINUTE for each in found]
        values = [size, str(world), *(shown(spread(each)) for each in (*times.values(), shares)), str(len(found))]
        yield f"| {' | '.join(values)} |"
    about = machine.describe()
    yield ""
    yield f"Medians of the saves, with the minimum and the maximum in brackets. {about['processor']},"
    yield f"{about['cores']} cores, {about['memory_gb']} GB; python {platform.python_version()},"
    yield f"torch {version('torch')}; load average {os.getloadavg()[0]:.1f} at the end; commit {machine.commit()}."


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2:])
    else:
        for line in table():
            print(line, flush=True)
