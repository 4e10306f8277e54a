"""Metrics of a run, which rank 0 serves. A step changes plain numbers and takes no lock."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from torchtally.log import log
from torchtally.monitoring.callback import LOSS_INTERVAL, Callback, Run
from torchtally.monitoring.pod_metrics import PodMetrics

_STEP_BUCKETS = [*(0.001 * 2**power for power in range(16)), math.inf]  # seconds: a millisecond to half a minute
_VALUES = {
    "train_loss": f"Mean loss of rank 0's samples in a step, every {LOSS_INTERVAL} steps",
    "epoch_loss": "Mean loss of all training samples in the last epoch",
    "test_loss": "Mean loss of all test samples after the last epoch",
    "test_accuracy": "Share of test samples classified correctly after the last epoch",
    "samples_per_second": "Training samples of all ranks per second in the last epoch",
}
_SUFFIXES = ("", "_total", "_bucket", "_count", "_sum", "_info", "_created")  # of samples of a metric


class Saving(Protocol):
    """The checkpoints of a run."""

    @property
    def saved_at(self) -> float:
        """Seconds since 1970: the newest checkpoint is of this time, or without one the start of the run is."""

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints."""


class RunMetrics(Callback, Collector):
    """The metrics of a run. Its counters begin at 0 with each start of the run, as Prometheus expects.

    Args:
        run: The run.
        saving: Its checkpoints, if torchtally saves them.
    """

    def __init__(self, run: Run, saving: Saving | None):
        self._run, self._saving = run, saving
        self._epoch = self._samples = 0
        self._began = self._done_before = self._done = 0.0  # time, and the completed share of the run then and now
        self._last_step: tuple[int, float] | None = None  # epoch and time
        self._buckets, self._seconds = [0] * len(_STEP_BUCKETS), 0.0  # of steps
        # Replaced and never changed, as another thread reads them.
        self._values = dict.fromkeys(_VALUES, math.nan)  # unknown
        self._proofs = {(phase, holds): 0 for phase in run.plan for holds in ("true", "false")}
        self._wrong = {(phase, how): 0 for phase in run.plan for how in ("lost", "doubled")}
        families = [*self.collect(), *PodMetrics(run, 1.0).collect()]
        self._taken = {family.name + suffix for family in families for suffix in _SUFFIXES}
        self._refused: set[str] = set()  # names of the program's own numbers

    def begin(self, step: int, done: float) -> None:
        self._began, self._done_before, self._done = time.monotonic(), done, done

    def step(self, epoch: int, samples: int, done: float) -> None:
        now = time.perf_counter()
        if self._last_step and self._last_step[0] == epoch:  # before an epoch's first step is an evaluation
            seconds = now - self._last_step[1]
            self._buckets[bisect_left(_STEP_BUCKETS, seconds)] += 1
            self._seconds += seconds
        self._last_step = epoch, now
        self._epoch, self._done = epoch, done
        self._samples += samples

    def metrics(self, step: int, **values: float) -> None:
        if clashing := {name for name in values.keys() - self._values.keys() if f"torchtally_{name}" in self._taken}:
            for name in sorted(clashing - self._refused):
                log.warning(f"torchtally_{name} is another metric, so the program's own number is not served")
            self._refused |= clashing
        self._values = {**self._values, **{name: value for name, value in values.items() if name not in clashing}}

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        key = line["phase"], "true" if holds else "false"
        self._proofs = {**self._proofs, key: self._proofs[key] + 1}
        # None: too many to count.
        counts = {(phase, how): line[how] or 0 for phase, how in self._wrong if phase == line["phase"]}
        self._wrong = {**self._wrong, **{key: self._wrong[key] + count for key, count in counts.items()}}

    def collect(self) -> Iterator[Metric]:
        run, done = self._run, self._done
        yield GaugeMetricFamily("torchtally_world_size", "Number of ranks", run.world)
        yield GaugeMetricFamily("torchtally_attempt", "Number of restarts of the run", run.attempt)
        yield GaugeMetricFamily("torchtally_epochs", "Number of epochs of the run", max(run.plan.values()))
        yield GaugeMetricFamily("torchtally_epoch", "Current epoch; 0 before the first step", self._epoch)
        yield GaugeMetricFamily("torchtally_progress_ratio", "Completed share of the run, from 0 to 1", done)
        yield GaugeMetricFamily(
            "torchtally_remaining_seconds",
            "Time until the plan is fulfilled, by the speed since this start of the run; NaN if unknown",
            self._remaining(done),
        )
        yield CounterMetricFamily(
            "torchtally_samples", "Samples that all ranks have trained on since this start of the run", self._samples
        )
        yield self._step_seconds()
        for name, value in self._values.items():
            about = _VALUES.get(name, "Last value that the program logged")
            yield GaugeMetricFamily(f"torchtally_{name}", about, value)
        proofs = CounterMetricFamily(
            "torchtally_proofs", "Epochs of a phase whose proof held or failed", labels=["phase", "holds"]
        )
        wrong = CounterMetricFamily(
            "torchtally_wrong_samples", "Samples that were `lost` or `doubled`", labels=["phase", "how"]
        )
        for family, counts in ((proofs, self._proofs), (wrong, self._wrong)):
            for labels, count in counts.items():
                family.add_metric(labels, count)
            yield family
        if self._saving:
            yield GaugeMetricFamily(
                "torchtally_last_checkpoint_timestamp_seconds",
                "When the newest checkpoint was written, or this start of the run began if it has written none",
                self._saving.saved_at,
            )
            yield GaugeMetricFamily(
                "torchtally_checkpoint_interval_seconds", "Time between two checkpoints", self._saving.interval
            )

    def _remaining(self, done: float) -> float:
        if done <= self._done_before:
            return math.nan
        return max(0.0, (time.monotonic() - self._began) * (1 - done) / (done - self._done_before))

    def _step_seconds(self) -> Metric:
        counts = accumulate(self._buckets.copy())
        buckets = [
            ("+Inf" if math.isinf(limit) else str(limit), count)
            for limit, count in zip(_STEP_BUCKETS, counts, strict=True)
        ]
        return HistogramMetricFamily("torchtally_step_seconds", "Duration of a step", buckets, self._seconds)
