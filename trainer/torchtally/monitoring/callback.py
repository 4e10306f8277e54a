"""Callbacks of a training, on rank 0: MLflow, Prometheus and Kubeflow Trainer listen by them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.accounting.tally import Phase

EVERY = 100  # steps between two values of train_loss, each of which waits for the device


class Callback:
    """Hears of everything, and does nothing; whoever does something must neither stop nor slow the training."""

    def begin(self, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        """It begins, or goes on: this share of it, from 0 to 1, is done, and proved in these lines of all ranks."""

    def step(self, phase: Phase, samples: int, done: float) -> None:
        """All ranks together have trained on so many samples in one step; this share of the training is done."""

    def metrics(self, step: int, **values: float) -> None:
        """Values at a step, counted over all epochs from 1."""

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        """All ranks' line of a phase: what was consumed, lost and doubled. If the proof holds, no rank's is wrong."""


class Callbacks(Callback):
    """Tells several."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._watchers = callbacks

    def begin(self, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        for each in self._watchers:
            each.begin(done, lines)

    def step(self, phase: Phase, samples: int, done: float) -> None:
        for each in self._watchers:
            each.step(phase, samples, done)

    def metrics(self, step: int, **values: float) -> None:
        for each in self._watchers:
            each.metrics(step, **values)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        for each in self._watchers:
            each.proof(line, holds)
