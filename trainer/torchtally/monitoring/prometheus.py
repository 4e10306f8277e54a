"""Rank 0's metrics for Prometheus, at /metrics of the port TORCHTALLY_METRICS_PORT, for as long as it trains."""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from torchtally.accounting.tally import Phase, Run
from torchtally.monitoring.callback import Callback

_STEP_SECONDS = [0.001 * 2**power for power in range(16)]  # a millisecond to half a minute


_VALUES = {
    "train_loss": "Mean loss of rank 0's samples in a step, now and then",
    "epoch_loss": "Mean loss of all samples in the last epoch",
    "test_loss": "Mean loss of all test samples after it",
    "test_accuracy": "Share of them that was right",
    "samples_per_second": "Of all ranks together in the last epoch",
}


@contextmanager
def served(port: int, run: Run) -> Iterator[Callback]:
    """Serve the metrics of what is done in the `with`; without them, in a sentence, where the port is taken."""
    metrics = Metrics(run)
    try:
        server, thread = start_http_server(port, registry=metrics.registry)
    except OSError as error:
        sentence = f"no metrics are served, as TORCHTALLY_METRICS_PORT={port} cannot be listened on: {error}"
        print(f"torchtally: {sentence}", file=sys.stderr, flush=True)
        yield Callback()
        return
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Metrics(Callback):
    """A run's metrics. Counters begin anew where the run starts again, as Prometheus takes them."""

    def __init__(self, run: Run) -> None:
        self.registry = registry = CollectorRegistry()
        about = {"run": run.run, "task": run.task, "data": run.data}
        Info("torchtally_run", "The run", registry=registry).info(about)
        Gauge("torchtally_world_size", "Ranks", registry=registry).set(run.world)
        Gauge("torchtally_attempt", "How often the run has started again", registry=registry).set(run.attempt)
        Gauge("torchtally_epochs", "Epochs that the run will make", registry=registry).set(run.plan["train"])
        self._epoch = Gauge("torchtally_epoch", "Epoch that is being trained", registry=registry)
        self._samples = Counter("torchtally_samples", "Samples that all ranks have trained on", registry=registry)
        self._seconds = Histogram("torchtally_step_seconds", "A step's", buckets=_STEP_SECONDS, registry=registry)
        self._values = {name: Gauge(f"torchtally_{name}", text, registry=registry) for name, text in _VALUES.items()}
        for gauge in self._values.values():
            gauge.set(math.nan)  # not yet known
        proofs, wrong = "Phases that were proved, or not", "Samples that were lost, or doubled"
        self._proofs = Counter("torchtally_proofs", proofs, ["phase", "holds"], registry=registry)
        self._wrong = Counter("torchtally_wrong_samples", wrong, ["phase", "how"], registry=registry)
        for phase in run.plan:
            for holds in ("true", "false"):
                self._proofs.labels(phase, holds)
            for how in ("lost", "doubled"):
                self._wrong.labels(phase, how)
        self._before: tuple[int, float] | None = None  # epoch and time of the last step

    def step(self, phase: Phase, samples: int, done: float) -> None:
        now = time.perf_counter()
        if self._before and self._before[0] == phase.epoch:  # an epoch's first waits for the test before it
            self._seconds.observe(now - self._before[1])
        self._before = phase.epoch, now
        self._epoch.set(phase.epoch)
        self._samples.inc(samples)

    def metrics(self, step: int, **values: float) -> None:
        for name, value in values.items():
            self._values[name].set(value)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._proofs.labels(line["phase"], "true" if holds else "false").inc()
        for how in ("lost", "doubled"):
            self._wrong.labels(line["phase"], how).inc(line[how] or 0)  # none where nobody could count them
