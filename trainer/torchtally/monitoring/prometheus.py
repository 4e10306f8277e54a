"""Metrics of a training for Prometheus, which rank 0 serves at /metrics of the port TORCHTALLY_METRICS_PORT."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from torchtally.log import log
from torchtally.monitoring.callback import LOSS_INTERVAL, Callback, Run
from torchtally.pod import address

_STEP_BUCKETS = [0.001 * 2**power for power in range(16)]  # seconds: a millisecond to half a minute
_VALUES = {
    "train_loss": f"Mean loss of rank 0's samples in a step, every {LOSS_INTERVAL} steps",
    "epoch_loss": "Mean loss of all training samples in the last epoch",
    "test_loss": "Mean loss of all test samples after the last epoch",
    "test_accuracy": "Share of test samples classified correctly after the last epoch",
    "samples_per_second": "Training samples of all ranks per second in the last epoch",
}


@contextmanager
def exporter(port: int, run: Run) -> Iterator[Callback]:
    """Serve the metrics of the training in the `with` block. Where the port is taken, warn and serve nothing."""
    metrics = Metrics(run)
    with ExitStack() as served:
        for each in address.of_metrics():
            try:
                server, thread = start_http_server(port, each, metrics.registry)
            except OSError as error:
                log.warning(
                    f"metrics are not served: TORCHTALLY_METRICS_PORT={port} cannot be opened at {each}: {error}"
                )
                continue
            served.callback(thread.join)
            served.callback(server.server_close)
            served.callback(server.shutdown)
        yield metrics


class Metrics(Callback):
    """A run's metrics. Counters restart from 0 when the run resumes, as Prometheus expects."""

    def __init__(self, run: Run) -> None:
        self.registry = registry = CollectorRegistry()
        labels = {"run": run.run, "task": run.task, "data": run.data}
        Info("torchtally_run", "The run, its task and its data", registry=registry).info(labels)
        Gauge("torchtally_world_size", "Number of ranks", registry=registry).set(run.world)
        Gauge("torchtally_attempt", "Number of restarts of the run", registry=registry).set(run.attempt)
        Gauge("torchtally_epochs", "Number of epochs of the run", registry=registry).set(max(run.plan.values()))
        self._epoch = Gauge("torchtally_epoch", "Current epoch", registry=registry)
        self._samples = Counter("torchtally_samples", "Samples that all ranks have trained on", registry=registry)
        self._seconds = Histogram(
            "torchtally_step_seconds", "Duration of a step", buckets=_STEP_BUCKETS, registry=registry
        )
        self._values = {name: Gauge(f"torchtally_{name}", text, registry=registry) for name, text in _VALUES.items()}
        for gauge in self._values.values():
            gauge.set(math.nan)  # unknown
        self._proofs = Counter(
            "torchtally_proofs", "Phases whose proof held or failed", ["phase", "holds"], registry=registry
        )
        self._wrong = Counter(
            "torchtally_wrong_samples", "Samples that were lost or doubled", ["phase", "how"], registry=registry
        )
        for phase in run.plan:
            for holds in ("true", "false"):
                self._proofs.labels(phase, holds)
            for how in ("lost", "doubled"):
                self._wrong.labels(phase, how)
        self._last_step: tuple[int, float] | None = None  # epoch and time

    def step(self, epoch: int, samples: int, done: float) -> None:
        now = time.perf_counter()
        if self._last_step and self._last_step[0] == epoch:  # before an epoch's first step is an evaluation
            self._seconds.observe(now - self._last_step[1])
        else:
            self._epoch.set(epoch)
        self._last_step = epoch, now
        self._samples.inc(samples)

    def metrics(self, step: int, **values: float) -> None:
        for name, value in values.items():
            if name not in self._values:
                self._values[name] = self._gauge(name)
            self._values[name].set(value)

    def _gauge(self, name: str) -> Gauge:
        """A gauge for a number of the user's own."""
        try:
            return Gauge(f"torchtally_{name}", "Last value that the program logged", registry=self.registry)
        except ValueError:  # a name that is taken, such as step_seconds
            log.warning(f"torchtally_{name} is another metric, so the program's own number is not served")
            return Gauge(f"torchtally_{name}", "", registry=CollectorRegistry())

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._proofs.labels(line["phase"], "true" if holds else "false").inc()
        for how in ("lost", "doubled"):
            self._wrong.labels(line["phase"], how).inc(line[how] or 0)  # None: too many to count
