"""Metrics for Prometheus, which the first rank of each pod serves at /metrics of the port TORCHTALLY_METRICS_PORT."""

from contextlib import ExitStack

from prometheus_client import CollectorRegistry

from torchtally.monitoring.callback import Callback, Run
from torchtally.monitoring.pod_metrics import Epoch, PodMetrics, Timer
from torchtally.monitoring.run_metrics import RunMetrics, Saving
from torchtally.pod import metrics


class Exporter:
    """Serves the metrics of one start of a run, from `open` to `close`.

    Args:
        port: Where.
        share: The share of all ranks that are in this pod.
    """

    def __init__(self, port: int, share: float):
        self._port, self._share = port, share
        self._registry = CollectorRegistry(auto_describe=True)  # the names that are taken
        self._pod: PodMetrics | None = None  # once it is open
        self._served = ExitStack()

    def open(self, run: Run) -> None:
        """Serve the metrics of the pod. Where the port is taken, warn and serve nothing."""
        if self._pod:
            return
        self._pod = PodMetrics(run, self._share)
        self._registry.register(self._pod)
        self._served = metrics.serve(self._registry, self._port)

    def of_run(self, run: Run, saving: Saving | None) -> Callback:
        """Serve the metrics of the run as well, on rank 0, and return what is told of it."""
        return RunMetrics(run, saving, self._registry)

    def begin(self, epoch: Epoch, timer: Timer) -> None:
        """An epoch of training begins, or continues."""
        assert self._pod
        self._pod.begin(epoch, timer)

    def close(self) -> None:
        """Serve nothing any more."""
        self._served.close()
