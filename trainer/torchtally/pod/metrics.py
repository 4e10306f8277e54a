"""Metrics for Prometheus: how a port serves them, and those of what is observed in a pod."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Self

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from torchtally.log import log
from torchtally.observed.line import Handed
from torchtally.pod import address

_LABELS = ("loader", "phase", "rank")


def serve(registry: CollectorRegistry, port: int) -> ExitStack:
    """Serve a registry until the returned stack is closed. Where the port is taken, warn and serve nothing."""
    served = ExitStack()
    for each in address.of_metrics():
        try:
            server, thread = start_http_server(port, each, registry)
        except OSError as error:
            log.warning(f"metrics are not served: TORCHTALLY_METRICS_PORT={port} cannot be opened at {each}: {error}")
            continue
        served.callback(thread.join)
        served.callback(server.server_close)
        served.callback(server.shutdown)
    return served


class Observed(Collector):
    """What the ranks of a pod were handed out. The counters begin at 0 with each start of the pod."""

    def __init__(self) -> None:
        self._passes, self._samples = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self._open: dict[tuple[object, ...], int] = {}  # by pass: its samples that count already

    @classmethod
    def served(cls, port: int) -> tuple[Self, ExitStack]:
        """Metrics that a port serves until the stack is closed."""
        own, registry = cls(), CollectorRegistry()
        registry.register(own)
        return own, serve(registry, port)

    def add(self, line: Handed) -> None:
        """Count a line; one of a pass that is still open counts with what has come since its last one."""
        labels = line.loader.name, line.phase, str(line.rank)
        key = line.process.key, line.loader, line.number
        before = self._open.pop(key, 0)
        if line.end == "open":
            self._open[key] = line.samples
        # Replaced and never changed, as another thread reads them.
        self._passes = self._passes + Counter({labels: int(line.end != "open")})
        self._samples = self._samples + Counter({labels: line.samples - before})

    def collect(self) -> Iterator[Metric]:
        for name, about, counts in (
            ("samples", "Samples that DataLoaders handed out to a rank of a program without an account", self._samples),
            ("passes", "Passes of these DataLoaders that have ended", self._passes),
        ):
            family = CounterMetricFamily(f"torchtally_observed_{name}", about, labels=_LABELS)
            for labels in self._samples:
                family.add_metric(labels, counts[labels])
            yield family
