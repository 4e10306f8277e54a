"""What an observation adds to a training that knows nothing of it: to a step, and to the start of a Python.

observed WORKERS [PAIRS]   batches of 32 samples, with so many workers, in percent of a step of 1.5 ms
observed start             the start of a Python, with and without an import of torch

A pass with and one without the observer take turns in one process, so that both meet the same machine. What counts is
the CPU time of the thread that trains, in the loader and in the optimizer: other programs change it least.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, dataloader

from bench.sample import emit
from torchtally_observer import line, patches

SITE = Path(__file__).parents[2] / "trainer/torchtally_observer"
_STEP, _BATCH, _STEPS, _TIMES = 1.5e-3, 32, 1280, 12
_STARTS = {"no import": "pass", "import torch": "import torch"}
_METHODS = ("_reset", "_next_index", "__next__")


def main() -> None:
    if sys.argv[1] == "start":
        _start()
        return
    _steps(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else _TIMES)


def _steps(workers: int, pairs: int) -> None:
    line.write = lambda values: None  # what a terminal or a disk takes is no part of a step
    training = _Training()
    added = []
    for pair in range(pairs):
        turns = (True, False) if pair % 2 else (False, True)
        found = {observed: training.seconds(workers, observed=observed) for observed in turns}
        added.append(100 * (found[True] - found[False]) / _STEP)
    for value in added:
        emit("observed", value, "% of a step", "lower", workers=workers)
    spread = statistics.quantiles(added, n=4)
    print(f"workers {workers}: median {spread[1]:.2f} % [{spread[0]:.2f} to {spread[2]:.2f}] of a step, n = {pairs}")


class _Training:
    """Steps of about 1.5 ms, so that an observation meets caches as a training leaves them."""

    def __init__(self) -> None:
        # As lists of numbers: the time that a worker's tensors take varies by more than what is looked for.
        self._samples: Any = [(float(each), each % 10) for each in range(_BATCH * _STEPS)]
        self._inputs, self._labels = torch.randn(_BATCH, 16), torch.randint(10, (_BATCH,))
        self._model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01)
        self._matrix, self._products = torch.randn(256, 256), 0
        while self._step_seconds() < _STEP:
            self._products += 1
        self._base = dataloader._BaseDataLoaderIter
        self._plain = [getattr(self._base, name) for name in _METHODS]
        patches.install(dataloader)
        self._observed = [getattr(self._base, name) for name in _METHODS]

    def seconds(self, workers: int, *, observed: bool) -> float:
        """The seconds of a step that a pass takes in the loader and in the optimizer."""
        for name, method in zip(_METHODS, self._observed if observed else self._plain, strict=True):
            setattr(self._base, name, method)
        hook = register_optimizer_step_post_hook(patches._stepped) if observed else None
        batches = iter(DataLoader(self._samples, _BATCH, shuffle=True, num_workers=workers, collate_fn=list))
        next(batches)  # after the start of the workers
        took, ended = 0.0, False
        while not ended:
            began = time.thread_time()
            ended = next(batches, None) is None
            took += time.thread_time() - began
            self._compute()
            began = time.thread_time()
            self._optimizer.step()
            took += time.thread_time() - began
        if hook:
            hook.remove()
        return took / _STEPS

    def _compute(self) -> None:
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(self._inputs), self._labels).backward()
        for _ in range(self._products):
            self._matrix @ self._matrix

    def _step_seconds(self) -> float:
        began = time.perf_counter()
        for _ in range(100):
            self._compute()
            self._optimizer.step()
        return (time.perf_counter() - began) / 100


def _start() -> None:
    for what, code in _STARTS.items():
        added = []
        for _ in range(_TIMES):
            took = {}
            for value in ("never", "auto"):
                env = {**os.environ, "PYTHONPATH": str(SITE), "TORCHTALLY_OBSERVE": value}
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], env=env, check=True)
                took[value] = time.perf_counter() - began
            added.append(1000 * (took["auto"] - took["never"]))
            emit("observed start", added[-1], "ms", "lower", what=what)
        print(f"{what}: median {statistics.median(added):.1f} ms added, n = {_TIMES}")


if __name__ == "__main__":
    main()
