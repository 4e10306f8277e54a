"""Runs all measurements in rounds and writes bench/results/: `python -m bench`."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from bench import machine, report
from bench.measure import loading, overhead, sampler, simulated, weighed
from bench.measure.throughput import TASKS
from bench.results import FOLDER, Results
from bench.sample import found_in

ROUNDS = 4
_LIMIT = 29.5 * 60  # seconds; a program starts only if it would end in time, judged by the last time that it ran
_SAY = 20  # seconds without a line, at least, before a value is shown as progress
_FETCH = """
import os
from torchtally.datasets import idx
from torchtally.environment import Places
for dataset in (idx.FASHION_MNIST, idx.MNIST):
    idx.load(dataset, None, Places.from_env(os.environ).cache)
"""


def main() -> int:
    began = time.monotonic()
    now = datetime.now(UTC)
    results = Results(
        began=now.isoformat(timespec="seconds"),
        seconds=0.0,
        commit=machine.commit(),
        machine=machine.describe(),
        versions=machine.versions(),
    )
    path = FOLDER / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    subprocess.run([sys.executable, "-c", _FETCH], check=True)
    shutil.rmtree(simulated.LOGS, ignore_errors=True)  # an earlier version of the line can have written them
    failed = 0
    took: dict[tuple[str, ...], float] = {}
    for number in range(1, ROUNDS + 1):
        for program in programs(number):
            started = time.monotonic()
            if started - began + took.get(tuple(program), 0.0) > _LIMIT:
                _say(f"round {number}: {' '.join(program)} is left out: it would exceed {_LIMIT:.0f} s")
                continue
            failed += not _measure(program, number, results)
            took[tuple(program)] = time.monotonic() - started
        results.seconds = round(time.monotonic() - began, 1)
        results.save(path)
    shutil.rmtree(simulated.LOGS, ignore_errors=True)  # they take 1.5 GB
    report.write(results)
    _say(f"wrote {path}, and its goals to {report.PAGE}")
    return 1 if failed else 0


def programs(number: int) -> Iterator[list[str]]:
    """The programs of round `number`: those of a goal in three rounds, and what varies widely in a fourth."""
    if number > 3:
        yield ["throughput", "mnist-cnn/4"]
        return
    yield ["limits"]
    yield ["startup"]
    yield ["throughput", *TASKS]  # at once: the peers' libraries take seconds to import
    for tool, n in sampler.CASES:
        yield ["sampler", tool, str(n)]
    yield ["verifier", "10000"]
    if number == 1:
        yield ["locality", "--samples"]  # it counts, so the other rounds would find the same
    yield ["saves", "2"]
    yield ["recovery", "once"]
    for case in ("0", "2", "start"):
        yield ["observed", case]
    for task in overhead.TASKS:
        yield ["overhead", task]
    for task in weighed.GOALS:
        yield ["weighed", task]
    yield ["verifier", "100000"]
    for workers in loading.WORKERS:
        yield ["loading", str(workers), "2"]
    yield ["many_pods", *(["10", "100"] if number == 1 else []), "1000"]


def _measure(program: list[str], number: int, results: Results) -> bool:
    """Add the samples of a program as it prints them; returns False if it fails, which loses only those that follow."""
    command = [sys.executable, "-m", f"bench.measure.{program[0]}", *program[1:]]
    began = said = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                for sample in found_in(line):
                    results.add(sample, number, os.getloadavg()[0])
                    if time.monotonic() - said > _SAY:
                        said = time.monotonic()
                        _say(f"round {number}: {sample.measure} {sample.case}: {sample.value:,.5g} {sample.unit}")
        if running.returncode:
            errors.seek(0)
            _say(f"{' '.join(command)} ended with {running.returncode}:\n{errors.read()[-4000:]}")
            return False
    _say(f"round {number}: {' '.join(program)} took {time.monotonic() - began:.0f} s")
    return True


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
