"""What huge pages bring: the passes of a model with and without them, in processes that take turns.

python -m bench.measure.huge_pages    prints a table
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import torch

from bench import machine
from bench.huge_pages import TUNABLES
from bench.markdown import markdown, shown
from bench.measure import passes
from bench.peers import common
from bench.spread import spread

_CASES = {
    "gpt, 8 windows": 0,
    "ResNet-18, 32 images of 64 × 64 pixels": 64,
    "ResNet-18, 32 images of 224 × 224 pixels": 224,
}
_WAYS = {"without": "", "with": TUNABLES}
_ROUNDS, _STEPS = 5, 5


def measure(side: int) -> tuple[float, float]:
    """Milliseconds of a forward and backward pass in bfloat16, and thousands of page faults in it. Side 0 is gpt."""
    case = passes.of_images(side, common.BATCH) if side else passes.of_gpt()
    case.forward().backward()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(_STEPS):
        case.forward().backward()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * seconds / _STEPS, (after.ru_minflt - before.ru_minflt) / _STEPS / 1e3


def table() -> Iterator[str]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {(name, way): [] for name in _CASES for way in _WAYS}
    for _ in range(_ROUNDS):
        for name, side in _CASES.items():
            for way, tunables in _WAYS.items():
                command = [sys.executable, "-m", "bench.measure.huge_pages", str(side)]
                environment = os.environ | {"GLIBC_TUNABLES": tunables}
                told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
                found[name, way].append(json.loads(told))
    rows = [
        [name, way, *(shown(spread(values)) for values in zip(*measured, strict=True))]
        for (name, way), measured in found.items()
    ]
    yield from markdown(["of", "huge pages", "both passes, ms", "page faults, thousand"], rows, left=(0, 1))
    yield ""
    yield f"Medians of n = {_ROUNDS} processes of {_STEPS} steps, CPU time of one core. {machine.sentence('torch')}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        for line in table():
            print(line)
