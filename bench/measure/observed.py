"""What an observation adds to a training that knows nothing of it: to a step, and to the start of a Python.

observed WORKERS [PAIRS]   batches of 32 samples, with so many workers, in percent of a step of 1.5 ms
observed start             the start of a Python, with and without an import of torch

A pass with and one without the observer take turns in one process, so that both meet the same machine. What counts is
the CPU time of the thread that iterates: a training waits for it, and other programs do not change it.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.sample import emit

SITE = Path(__file__).parents[2] / "trainer/torchtally_observer"
_STEP, _BATCH, _STEPS, _PAIRS = 1.5e-3, 32, 1280, 12
_STARTS = {"no import": "pass", "import torch": "import torch"}


def main() -> None:
    if sys.argv[1] == "start":
        _start()
        return
    _steps(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else _PAIRS)


def _steps(workers: int, pairs: int) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset, dataloader

    from torchtally_observer import line, patches

    data = TensorDataset(torch.randn(_BATCH * _STEPS, 16), torch.randint(10, (_BATCH * _STEPS,)))
    methods = ("_reset", "_next_index", "__next__")
    base = dataloader._BaseDataLoaderIter
    plain = [getattr(base, name) for name in methods]
    patches.install(dataloader)
    observed = [getattr(base, name) for name in methods]
    line.write = lambda values: None  # what a terminal or a disk takes is no part of a step

    def seconds(own: list[object]) -> float:
        for name, method in zip(methods, own, strict=True):
            setattr(base, name, method)
        loader = DataLoader(data, _BATCH, shuffle=True, num_workers=workers)
        batches = iter(loader)
        next(batches)  # after the start of the workers
        began = time.thread_time()
        for _ in batches:
            pass
        return (time.thread_time() - began) / (_STEPS - 1)

    found = [(seconds(plain), seconds(observed)) for _ in range(pairs)]
    added = [100 * (with_it - without) / _STEP for without, with_it in found]
    for value in added:
        emit("observed", value, "% of a step", "lower", workers=workers)
    spread = statistics.quantiles(added, n=4)
    print(f"workers {workers}: median {spread[1]:.2f} % [{spread[0]:.2f} to {spread[2]:.2f}] of a step, n = {pairs}")


def _start() -> None:
    for what, code in _STARTS.items():
        added = []
        for _ in range(_PAIRS):
            took = {}
            for value in ("never", "auto"):
                env = {**os.environ, "PYTHONPATH": str(SITE), "TORCHTALLY_OBSERVE": value}
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], env=env, check=True)
                took[value] = time.perf_counter() - began
            added.append(1000 * (took["auto"] - took["never"]))
            emit("observed start", added[-1], "ms", "lower", what=what)
        print(f"{what}: median {statistics.median(added):.1f} ms added, n = {_PAIRS}")


if __name__ == "__main__":
    main()
