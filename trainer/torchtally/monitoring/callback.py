"""The interface by which rank 0 notifies trackers and Prometheus of its training."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Run(Protocol):
    """What watchers know of the run."""

    @property
    def run(self) -> str:
        """Id of the run."""

    @property
    def attempt(self) -> int: ...

    @property
    def task(self) -> str: ...

    @property
    def plan(self) -> Mapping[str, int]:
        """Epochs of each phase."""

    @property
    def world(self) -> int: ...

    @property
    def data(self) -> str:
        """The data's fingerprint."""


class Callback:
    """A callback that ignores all events. A subclass must neither stop nor slow the training."""

    def begin(self, step: int, done: float) -> None:
        """The training starts, or resumes after `step`, counted as in `metrics`; `done` is its completed share."""

    def step(self, epoch: int, samples: int, done: float) -> None:
        """All ranks together have trained on `samples` in one step; `done` is the training's completed share."""

    def metrics(self, step: int, **values: float) -> None:
        """Values at a step, counted from 1 over all epochs."""

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        """All ranks' line of a phase. `holds`: neither this line nor that of any rank is wrong."""

    def complete(self, line: Mapping[str, Any]) -> None:
        """The plan is fulfilled and proved: the last line of the run. Only an account's run reports it."""


class Callbacks(Callback):
    """Notifies several callbacks."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def begin(self, step: int, done: float) -> None:
        for each in self._callbacks:
            each.begin(step, done)

    def step(self, epoch: int, samples: int, done: float) -> None:
        for each in self._callbacks:
            each.step(epoch, samples, done)

    def metrics(self, step: int, **values: float) -> None:
        for each in self._callbacks:
            each.metrics(step, **values)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        for each in self._callbacks:
            each.proof(line, holds)

    def complete(self, line: Mapping[str, Any]) -> None:
        for each in self._callbacks:
            each.complete(line)
