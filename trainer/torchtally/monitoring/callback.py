"""The interface by which rank 0's training loop notifies MLflow, Prometheus and Kubeflow Trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.accounting.tally import Phase

LOSS_INTERVAL = 100  # steps between two values of train_loss, because reading one synchronizes with the device


class Callback:
    """A callback that ignores all events. A subclass must neither stop nor slow the training."""

    def begin(self, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        """The training starts or resumes. `done`: its completed share, 0 to 1; `lines`: all ranks' lines so far."""

    def step(self, phase: Phase, samples: int, done: float) -> None:
        """All ranks together have trained on `samples` in one step; `done` is the training's completed share."""

    def metrics(self, step: int, **values: float) -> None:
        """Values at a step, counted from 1 over all epochs."""

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        """All ranks' line of a phase. `holds`: neither this line nor that of any rank is wrong."""


class Callbacks(Callback):
    """Notifies several callbacks."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def begin(self, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        for each in self._callbacks:
            each.begin(done, lines)

    def step(self, phase: Phase, samples: int, done: float) -> None:
        for each in self._callbacks:
            each.step(phase, samples, done)

    def metrics(self, step: int, **values: float) -> None:
        for each in self._callbacks:
            each.metrics(step, **values)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        for each in self._callbacks:
            each.proof(line, holds)
