"""Duration and peak memory of scripts/verify_shards.py on logs of 10 000 ranks, 10 epochs and 10⁹ samples."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.measure.simulated import LOGS, SimulatedJob, write
from bench.sample import emit

_JOB = SimulatedJob(ranks=10_000, epochs=10, n=10**9)


def main() -> None:
    folder, stream = LOGS / "pods", LOGS / "interleaved.log"
    if not folder.exists():
        # In a process of its own, because a child's peak is at least that of its parent at the fork.
        code = "from bench.measure import verifier; verifier.simulate()"
        subprocess.run([sys.executable, "-c", code], check=True)
    for logs, path in {"a file a pod": folder, "one stream": stream}.items():
        seconds, peak = _verified(path)
        emit("verifier", seconds, "s", "lower", logs=logs)
        emit("verifier, peak memory", peak / 1e6, "MB", "lower", logs=logs)


def simulate() -> None:
    write(_JOB, LOGS / "pods", LOGS / "interleaved.log")


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
    main()
