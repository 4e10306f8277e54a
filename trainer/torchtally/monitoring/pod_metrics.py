"""Metrics of one pod, which its first rank serves. They are computed when Prometheus asks, so a step costs nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from torchtally.monitoring.callback import Run

PARTS = ("data_wait", "compute", "communication")


class Epoch(Protocol):
    """An epoch of training in progress."""

    counted: int  # steps in the weights

    @property
    def phase(self) -> str: ...

    def samples(self, first: int, last: int) -> int:
        """Samples of all ranks in the steps after step `first`, up to step `last`."""


class Times(Protocol):
    """Seconds in a number of steps."""

    @property
    def steps(self) -> int: ...

    @property
    def data_wait(self) -> float: ...

    @property
    def compute(self) -> float: ...

    @property
    def communication(self) -> float: ...


class Timer(Protocol):
    """Times the steps of this rank."""

    @property
    def total(self) -> Times:
        """All steps so far."""


@dataclass(frozen=True)
class _Trained:
    """What this start of the run has trained. It is replaced and never changed, as another thread reads it."""

    steps: int = 0  # of epochs that are over
    samples: int = 0
    current: Mapping[str, tuple[Epoch, int]] = field(default_factory=dict)  # by phase, with the steps before this start

    def with_epoch(self, epoch: Epoch) -> "_Trained":
        over = self.current.get(epoch.phase)
        steps, samples = _since(*over) if over else (0, 0)
        current = {**self.current, epoch.phase: (epoch, epoch.counted)}
        return _Trained(self.steps + steps, self.samples + samples, current)

    @property
    def total(self) -> tuple[int, int]:
        """Steps and samples, those of the epochs in progress included."""
        found = [_since(*each) for each in self.current.values()]
        return self.steps + sum(steps for steps, _ in found), self.samples + sum(samples for _, samples in found)


class PodMetrics(Collector):
    """The metrics of a pod. Its counters begin at 0 with each start of the run, as Prometheus expects.

    Args:
        run: The run.
        share: The share of all ranks that are in this pod.
    """

    def __init__(self, run: Run, share: float):
        self._run, self._share = run, share
        self._trained = _Trained()
        self._timer: Timer | None = None
        self._timed = dict.fromkeys(("steps", *PARTS), 0.0)  # that was served last

    def begin(self, epoch: Epoch, timer: Timer) -> None:
        """An epoch of training begins, or continues."""
        self._timer, self._trained = timer, self._trained.with_epoch(epoch)

    def collect(self) -> Iterator[Metric]:
        labels = {"run": self._run.run, "task": self._run.task, "data": self._run.data}
        yield InfoMetricFamily("torchtally_run", "Id, task and data of the run", value=labels)
        steps, samples = self._trained.total
        yield CounterMetricFamily("torchtally_steps", "Training steps since this start of the run", value=steps)
        yield CounterMetricFamily(
            "torchtally_pod_samples",
            "The pod's share of the samples that all ranks have trained on since this start of the run",
            value=samples * self._share,
        )
        if self._timer:
            times = self._timer.total
            # The loop may be between two of these numbers, and a counter never decreases.
            self._timed = {name: max(before, getattr(times, name)) for name, before in self._timed.items()}
        yield CounterMetricFamily(
            "torchtally_timed_steps", "Steps of the pod's first rank whose parts are timed", value=self._timed["steps"]
        )
        parts = CounterMetricFamily(
            "torchtally_step_part_seconds",
            "Seconds of these steps, by part: `data_wait` (for the next batch), `communication` (for other ranks), or "
            "`compute` (all else)",
            labels=["part"],
        )
        for part in PARTS:
            parts.add_metric([part], self._timed[part])
        yield parts


def _since(epoch: Epoch, before: int) -> tuple[int, int]:
    """Steps and samples of an epoch after step `before`."""
    counted = epoch.counted
    return counted - before, epoch.samples(before, counted)
