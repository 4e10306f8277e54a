"""How long a training is held by a save of its checkpoint: for examples/gpt.py, which saves in the background.

python -m bench.measure.saves      prints a table of two sizes
saves WORLD                        measures the larger one, as a part of `make bench`, and a resume from its checkpoint
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
from statistics import median
from typing import Any

from bench import machine
from bench.markdown import markdown, shown
from bench.sample import emit
from bench.spread import spread
from torchtally import events
from torchtally.errors import SIGNALLED

_SAVES = 6  # of which the first, which allocates memory, does not count
_SAVES_OF_A_ROUND = 4
_SIZES = {"0.1": "--width 64 --layers 2", "6": "--width 256 --layers 8 --length 32 --batch 2"}  # million parameters
_WORLDS = (1, 2)
_EVERY = 1.0  # seconds
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
            print(json.dumps({"saves": saves[1:]}), flush=True)


def main() -> None:
    """Measure the larger size."""
    world = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as output:
        cold, found = _trained(_SIZES["6"], world, output, _SAVES_OF_A_ROUND)
        resumed, _ = _trained(_SIZES["6"], world, output, 1, resumes=True)
    shares = {"held": ["held"], "held, and the CPU time of writing": ["held", "writing, CPU"]}
    for what, names in shares.items():
        share = 100 * median(sum(each[name] for name in names) for each in found) / _MINUTE
        emit("save", share, "% of a minute", "lower", what=what, world=world)
    for start, seconds in {"cold": cold, "resumed": resumed}.items():
        emit("first step of a GPT", seconds, "s", "lower", start=start, world=world)


def measured(options: str, world: int) -> list[dict[str, float]]:
    """What rank 0's saves took, in a training that ends with a signal after `_SAVES` of them."""
    with tempfile.TemporaryDirectory() as output:
        return _trained(options, world, output, _SAVES)[1]


def _trained(
    options: str, world: int, output: str, saves: int, *, resumes: bool = False
) -> tuple[float, list[dict[str, float]]]:
    """Seconds from the command to the first step, and what the saves took until a signal ends the training."""
    rank = [sys.executable, "-m", "bench.measure.saves", "worker", *options.split(), "--steps", "1000000"]
    command = [str(Path(sys.executable).with_name("torchtally")), "run", "--", *rank]
    own = {"PET_NPROC_PER_NODE": str(world), "TORCHTALLY_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    more = ["--save-every", str(_EVERY), "--output", output]
    first, saved, found, resumed = 0.0, 0, [], False
    began = time.time()
    with subprocess.Popen([*command, *more], env=os.environ | own, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if record := events.read(line):
                match record.event:
                    case events.Step():
                        first = record.time - began
                    case events.Resumed():
                        resumed = True
                    case events.Saved():
                        saved += 1
                        if saved == saves:
                            job.send_signal(signal.SIGTERM)
            if line.startswith('{"saves"'):
                found = json.loads(line)["saves"][: saves - 1]  # without the one of the signal
    if job.returncode != SIGNALLED + signal.SIGTERM or not first or resumed != resumes:
        sys.exit(f"the training ended with {job.returncode}; first step {first}, resumed: {resumed}")
    return first, found


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
    elif sys.argv[1:]:
        main()
    else:
        for line in table():
            print(line, flush=True)
