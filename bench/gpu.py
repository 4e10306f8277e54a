"""Measures on one GPU within 10 minutes, without a network: `make bench-gpu`.

python -m bench.gpu        writes bench/results/gpu/ after each program
python -m bench.gpu cpu    rehearses all of it on CPUs with little data; its results are none of a GPU
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from bench import goals_gpu, machine, markdown, pack, processes
from bench.measure.gpu import TOOLS
from bench.results import ON_GPU, Results
from bench.sample import found_in, notes_in

ROUNDS = {"cuda": 3, "cpu": 1}
_SECONDS = 540  # of all programs
_EACH = 90  # seconds of a program
_ONCE = 150  # of one that has several trainings
_PACKAGES = ("torch", "torchvision", "numpy", "accelerate", "lightning", "pillow")
_DEVICE = """
import json, torch
from torchtally.pod import device
found = torch.cuda.is_available()
print(json.dumps({
    "gpu": torch.cuda.get_device_name() if found else None,
    "gpu_memory_gb": round(torch.cuda.get_device_properties(0).total_memory / 1e9) if found else 0,
    "driver": device.driver() or "none",
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "none",
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none",
}))
"""
_NOT_CAPTURED = "the step cannot be captured in a CUDA graph"


@dataclass(frozen=True)
class Program:
    """A module of bench.measure with its arguments."""

    words: tuple[str, ...]
    seconds: float = _EACH

    def __str__(self) -> str:
        return " ".join(self.words)


def programs(number: int) -> Iterator[Program]:
    """The programs of round `number`, those with images last, which take longest. What is exact is so in any round."""
    of_tools = [Program(("gpu", tool, task)) for task, tools in TOOLS.items() for tool in tools]
    once = [Program(("gpu_exact", what)) for what in ("captured", "dropout")]
    yield from (each for each in of_tools if "image" not in str(each))
    if number == 1:
        yield from (*once, Program(("gpu_ranks",), _ONCE))
    yield from (each for each in of_tools if "image" in str(each))


def main(argv: list[str]) -> int:
    if argv not in ([], ["cpu"]):
        _say(f"the argument must be cpu, or none: {' '.join(argv)}")
        return 2
    device = "cpu" if argv else "cuda"
    began, now = time.monotonic(), datetime.now(UTC)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    os.environ |= {"BENCH_DEVICE": device, "TORCHTALLY_CACHE": str(pack.CACHE), "PYTHONUNBUFFERED": "1", **hidden}
    told = subprocess.run([sys.executable, "-c", _DEVICE], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(told.stdout)
    if device == "cuda" and not found["gpu"]:
        _say(f"PyTorch {found['torch']} (CUDA {found['cuda']}) finds no GPU (driver: {found['driver']})")
        return 1
    versions = machine.versions(_PACKAGES) | {name: found.pop(name) for name in ("torch", "cuda", "nccl")}
    about = machine.describe() | (found if device == "cuda" else {})
    results = Results(now.isoformat(timespec="seconds"), 0.0, _commit(), about, versions)
    path = (ON_GPU if device == "cuda" else pack.MADE / "rehearsed") / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    _say(f"{found['gpu'] or 'rehearsal on CPUs'}; {', '.join(f'{name} {each}' for name, each in versions.items())}")
    _say(f"writes {path} after each program")
    took: dict[Program, float] = {}
    for number in range(1, ROUNDS[device] + 1):
        for program in programs(number):
            started = time.monotonic()
            left = _SECONDS - (started - began)
            if left < took.get(program, 1.0):
                results.notes.setdefault(str(program), f"{goals_gpu.LEFT_OUT} from round {number} on, for want of time")
                _say(f"round {number}: {program} is left out: {max(0.0, left):.0f} s are left")
            else:
                _measure(program, number, results, min(left, program.seconds))
                took[program] = time.monotonic() - started
            results.seconds = round(time.monotonic() - began, 1)
            results.save(path)
    _report(results, path.is_relative_to(ON_GPU))
    return 1 if any(each.startswith(goals_gpu.FAILED) for each in results.notes.values()) else 0


def _measure(program: Program, number: int, results: Results, seconds: float) -> None:
    """Add the samples of a program. A failure loses only these, and is noted."""
    load, began = os.getloadavg()[0], time.monotonic()
    module, *arguments = program.words
    command = [sys.executable, "-m", f"bench.measure.{module}", *arguments]
    ended = processes.run(command, os.environ, seconds)
    said = f"round {number}: {program} took {time.monotonic() - began:.0f} s"
    notes, samples = notes_in(ended.output), found_in(ended.output)
    results.notes |= notes
    if ended.failure:
        results.notes[str(program)] = f"{goals_gpu.FAILED}{ended.failure}"
        _say(f"{said}: {ended.failure}\n{ended.output[-1000:]}{ended.errors[-3000:]}")
        return
    if _NOT_CAPTURED in ended.errors:
        notes[str(program)] = next(line for line in ended.errors.splitlines() if _NOT_CAPTURED in line)
        results.notes |= notes
    for sample in samples:
        results.add(sample, number, load)
    values = [f"{markdown.number(each.value)} {each.unit} {[*each.case.values()]}" for each in samples]
    _say("\n  ".join([said, *values, *(f"{what}: {text}" for what, text in notes.items())]))


def _report(results: Results, on_gpu: bool) -> None:
    for what, text in results.notes.items():
        _say(f"{what}: {text}")
    if not on_gpu:
        _say("a rehearsal: the rows below have no figure of a GPU")
    print(goals_gpu.text(results), flush=True)
    _say(f"took {results.seconds:.0f} s")


def _commit() -> str:
    """The commit; where the checkout has come without its repository, the one that it was packed with."""
    try:
        return machine.commit()
    except (OSError, subprocess.CalledProcessError):
        return pack.COMMIT.read_text()


def _say(text: str) -> None:
    print(f"bench-gpu: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
