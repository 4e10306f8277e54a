"""The watchers that the options and the environment request."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torchtally.environment import StatusServer, metrics_port, mlflow_experiment
from torchtally.monitoring import mlflow_client, trainjob_status
from torchtally.monitoring.callback import Callback, Run


@dataclass(frozen=True, kw_only=True)
class Requested:
    """Who is to be notified of a training."""

    experiment: str | None  # of MLflow
    port: int | None  # of the metrics for Prometheus
    server: StatusServer | None  # of Kubeflow Trainer

    @classmethod
    def of(cls, experiment: str | None = None) -> Self:
        """What the environment requests, and this experiment of MLflow. Raises Refused."""
        experiment = experiment or mlflow_experiment()
        if experiment is not None:
            mlflow_client.check(experiment)
        return cls(experiment=experiment, port=metrics_port(), server=StatusServer.from_env())

    def callbacks(
        self, run: Run, options: Mapping[str, Any], output: Path, example: Any = None
    ) -> Iterator[AbstractContextManager[Callback]]:
        """Yield what notifies each of them in a `with` block, which is the training.

        `output` has the database of MLflow if there is no server. `example`: inputs of a built-in task's model.
        """
        if self.experiment is not None:
            yield mlflow_client.recorder(self.experiment, run, options, output, example)
        if self.port is not None:
            from torchtally.monitoring import prometheus  # imports an HTTP server

            yield prometheus.exporter(self.port, run)
        if self.server:
            yield trainjob_status.reporter(self.server)
