"""Duration and peak memory of scripts/verify_shards.py on logs of 10 epochs and 10⁹ samples, by number of ranks."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.measure.simulated import LOGS, SimulatedJob, write
from bench.sample import emit

RANKS = (10_000, 100_000)


def main(ranks: int) -> None:
    folder, stream = LOGS / f"{ranks}" / "pods", LOGS / f"{ranks}" / "interleaved.log"
    if not folder.exists():
        # In a process of its own, because a child's peak is at least that of its parent at the fork.
        code = f"from bench.measure import verifier; verifier.simulate({ranks})"
        subprocess.run([sys.executable, "-c", code], check=True)
    for logs, path in {"a file a pod": folder, "one stream": stream}.items():
        seconds, peak = _verified(path)
        emit("verifier", seconds, "s", "lower", ranks=ranks, logs=logs)
        emit("verifier, peak memory", peak / 1e6, "MB", "lower", ranks=ranks, logs=logs)


def simulate(ranks: int) -> None:
    job, folder = SimulatedJob(ranks=ranks, epochs=10, n=10**9), LOGS / f"{ranks}"
    write(job, folder / "pods", folder / "interleaved.log")


def _verified(path: Path) -> tuple[float, int]:
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "scripts/verify_shards.py", str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()  # so that the pipe never fills up
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"the proof of {path} does not hold: {text[-1000:].decode()}")
    return seconds, usage.ru_maxrss * 1024


if __name__ == "__main__":
    for ranks in map(int, sys.argv[1:] or RANKS):
        main(ranks)
