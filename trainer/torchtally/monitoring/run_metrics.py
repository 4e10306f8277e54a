"""Metrics of a run, which rank 0 serves."""

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from torchtally.log import log
from torchtally.monitoring.callback import Callback, Run

_STEP_BUCKETS = [0.001 * 2**power for power in range(16)]  # seconds: a millisecond to half a minute
_VALUES = {
    "train_loss": "Mean loss of rank 0's samples in one of the last steps",
    "train_epoch_loss": "Mean loss of all training samples in the last epoch",
    "test_loss": "Mean loss of all test samples after the last epoch",
    "test_accuracy": "Share of test samples classified correctly after the last epoch",
    "samples_per_second": "Training samples of all ranks per second in the last epoch",
}


class Saving(Protocol):
    """The checkpoints of a run."""

    @property
    def saved_at(self) -> float:
        """Seconds since 1970: the newest checkpoint is of this time, or without one the start of the run is."""

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints."""


class RunMetrics(Callback):
    """The metrics of a run. Its counters begin at 0 with each start of the run, as Prometheus expects.

    Args:
        run: The run.
        saving: Its checkpoints, if torchtally saves them.
        registry: Where the metrics are registered.
    """

    def __init__(self, run: Run, saving: Saving | None, registry: CollectorRegistry):
        self._registry = registry
        self._began = self._done_before = self._done = 0.0  # time, and the completed share of the run then and now
        self._epoch = 0
        self._stepped: float | None = None  # when the last step of the epoch was over
        self._gauge("world_size", "Number of ranks").set(run.world)
        self._gauge("attempt", "Number of restarts of the run").set(run.attempt)
        self._gauge("epochs", "Number of epochs of the run").set(max(run.plan.values()))
        self._gauge("epoch", "Current epoch; 0 before the first step").set_function(lambda: self._epoch)
        done = self._gauge("progress_ratio", "Completed share of the run, from 0 to 1")
        done.set_function(lambda: self._done)
        about = "Time until the plan is fulfilled, by the speed since this start of the run; NaN if unknown"
        self._gauge("remaining_seconds", about).set_function(self._remaining)
        about = "Samples that all ranks have trained on since this start of the run"
        self._samples = Counter("torchtally_samples", about, registry=registry)
        self._seconds = Histogram(
            "torchtally_step_seconds", "Duration of a step", buckets=_STEP_BUCKETS, registry=registry
        )
        self._values: dict[str, Gauge | None] = {}  # None: another metric has that name
        for name, about in _VALUES.items():
            self._values[name] = gauge = self._gauge(name, about)
            gauge.set(math.nan)  # unknown
        about = "Epochs of a phase whose proof held or failed"
        self._proofs = Counter("torchtally_proofs", about, ["phase", "holds"], registry=registry)
        about = "Samples that were `lost` or `duplicated`"
        self._wrong = Counter("torchtally_wrong_samples", about, ["phase", "how"], registry=registry)
        for phase in run.plan:
            for holds, how in (("true", "lost"), ("false", "duplicated")):
                self._proofs.labels(phase, holds)
                self._wrong.labels(phase, how)
        if saving:
            about = "When the newest checkpoint was written, or this start of the run began if it has written none"
            self._gauge("last_checkpoint_timestamp_seconds", about).set_function(lambda: saving.saved_at)
            about = "Time between two checkpoints"
            self._gauge("checkpoint_interval_seconds", about).set_function(lambda: saving.interval)

    def begin(self, step: int, done: float) -> None:
        self._began, self._done_before, self._done = time.monotonic(), done, done

    def step(self, epoch: int, samples: int, done: float) -> None:
        now = time.perf_counter()
        if self._stepped is not None and self._epoch == epoch:  # before an epoch's first step is an evaluation
            self._seconds.observe(now - self._stepped)
        self._stepped, self._epoch, self._done = now, epoch, done
        self._samples.inc(samples)

    def metrics(self, step: int, **values: float) -> None:
        for name, value in values.items():
            if name not in self._values:
                self._values[name] = self._own(name)
            if gauge := self._values[name]:
                gauge.set(value)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._proofs.labels(line["phase"], "true" if holds else "false").inc()
        for how in ("lost", "duplicated"):
            self._wrong.labels(line["phase"], how).inc(line[how] or 0)  # None: too many to count

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"torchtally_{name}", about, registry=self._registry)

    def _own(self, name: str) -> Gauge | None:
        """A metric of the program's own number, unless another has that name."""
        try:
            return self._gauge(name, "Last value that the program logged")
        except ValueError:
            log.warning(f"torchtally_{name} is another metric, so the program's own number is not served")
            return None

    def _remaining(self) -> float:
        if self._done <= self._done_before:
            return math.nan
        return max(0.0, (time.monotonic() - self._began) * (1 - self._done) / (self._done - self._done_before))
