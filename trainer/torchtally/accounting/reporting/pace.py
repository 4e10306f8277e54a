"""How fast a pod trains: its first rank reports this now and then, for programs that watch the job."""

import os
import time
from typing import Self

from torchtally import events
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.reporting.step_time import Times
from torchtally.environment import Process, progress_seconds

_FIRST_SECONDS = 1.0  # to the first report, so that a short training has one


class Pace:
    """The reports of one start of a pod. A step costs one look at the clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # between two reports
        self._due = 0.0
        self._began: tuple[float, float] | None = None  # time, and the completed share of the training
        self._last: dict[str, tuple[float, int]] = {}  # by phase: time, and samples of the epoch
        self._timed = Times()  # up to the last report

    @classmethod
    def of(cls, process: Process) -> Self | None:
        """None except on the first rank of a pod. Raises Refused."""
        seconds = progress_seconds(os.environ)
        return cls(seconds) if process.local_rank == 0 else None

    def begin(self, phase: str, samples: int, done: float) -> None:
        """An epoch begins, or continues: `samples` of it are consumed, and `done` is the training's share, 0 to 1."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._due = (now, done), now + min(self._seconds, _FIRST_SECONDS)
        self._last[phase] = now, samples

    @property
    def due(self) -> bool:
        """Whether it is time for a report."""
        return time.monotonic() >= self._due

    def report(self, current: EpochInProgress, done: float, loss: float | None, times: Times) -> None:
        """Report how far an epoch is, the training's completed share, and the times of all steps so far."""
        assert self._began is not None
        timed, self._timed = times.since(self._timed), times
        run, phase, samples = current.tally.run, current.tally.phase, current.samples(0, current.counted)
        now, (began, done_before), (last, before) = time.monotonic(), self._began, self._last[phase.name]
        left = (now - began) * (1 - done) / (done - done_before) if done > done_before else None
        event = events.Progress(
            phase=phase.name,
            epoch=phase.epoch,
            epochs=run.plan[phase.name],
            step=current.counted,
            steps=current.total,
            samples_per_second=round((samples - before) / max(now - last, 1e-9), 1),
            loss=loss,
            seconds_left=None if left is None else round(max(0.0, left), 1),
            timed_steps=timed.steps,
            data_wait=round(timed.data_wait, 6),
            compute=round(timed.compute, 6),
            communication=round(timed.communication, 6),
        )
        events.emit(event, run.source)
        self._last[phase.name], self._due = (now, samples), now + self._seconds
