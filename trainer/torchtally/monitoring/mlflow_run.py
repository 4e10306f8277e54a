"""A run in MLflow.

MLflow's own asynchronous logging does not do: Python would not end before it has an answer.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtally.monitoring.callback import Run
from torchtally.monitoring.tracker import Proof, Status, Trained, Value

_RUN, _PROOF = "torchtally.run", "torchtally.proof"  # tags


class MLflowRun:
    """A `Tracker`.

    Args:
        experiment: Its name in MLflow.
        run: The run of the account.
        options: Those of the program.
        output: Folder of the database if there is no server.
        trained: The model of a built-in task, which is recorded as well.
    """

    name = "MLflow"

    def __init__(
        self, experiment: str, run: Run, options: Mapping[str, Any], output: Path, trained: Trained | None = None
    ) -> None:
        # Not in the thread: a process that is forked meanwhile would find the import begun, and wait for its end.
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic", "urllib3.connectionpool"):  # a failure is one line, which is ours
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._experiment, self._of, self._options = experiment, run, options
        self._output, self._trained = output.absolute(), trained
        self._server = os.environ.get("MLFLOW_TRACKING_URI")
        self._uri = self._server or f"sqlite:///{self._output}/mlflow.db"
        self._client: MlflowClient | None = None  # once the server has answered
        self._run = ""  # MLflow's id
        self._system: Any = None  # the thread that samples the metrics of the machine

    def connect(self) -> None:
        if self._client is None:
            self._client = self._found()
        self._sample()

    def log(self, values: list[Value]) -> None:
        from mlflow.entities import Metric

        assert self._client
        self._client.log_batch(self._run, metrics=[Metric(*each) for each in values])

    def finish(self, status: Status, proof: Proof | None) -> None:
        assert self._client
        self._system.finish()
        if proof:
            self._client.log_text(self._run, proof.text, proof.file)
            if self._trained:
                self._log_model(self._trained)
            self._client.set_tag(self._run, _PROOF, proof.verdict)
        self._client.set_terminated(self._run, status)

    def _found(self) -> Any:
        """A client of the server, with the run that an earlier attempt tagged with the run's id, or else a new one."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if not self._server:
            self._output.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(self._uri)
        run, task = self._of.run, self._of.task
        experiment = client.get_experiment_by_name(self._experiment)
        place = None if self._server else (self._output / "mlflow").as_uri()  # else it is the working directory
        number = experiment.experiment_id if experiment else client.create_experiment(self._experiment, place)
        if found := client.search_runs([number], f"tags.`{_RUN}` = '{run}'", max_results=1):
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
        else:
            tags = {_RUN: run, "task": task}
            self._run = client.create_run(number, tags=tags, run_name=f"{task}-{run}").info.run_id
            client.log_batch(self._run, params=[Param(key, str(value)) for key, value in self._options.items()])
        for key, value in {"data": self._of.data, "world": self._of.world, "attempt": self._of.attempt}.items():
            client.set_tag(self._run, key, value)
        return client

    def _sample(self) -> None:
        """Have MLflow sample the metrics of the machine from here on. It ends itself where the server fails."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        if self._system:
            self._system.finish()
        self._system = SystemMetricsMonitor(self._run, resume_logging=True, tracking_uri=self._uri)
        self._system.start()

    def _log_model(self, trained: Trained) -> None:
        import mlflow
        import torch

        model, inputs = trained()
        model.eval()
        with torch.no_grad():
            outputs = model(inputs)
        mlflow.set_tracking_uri(self._uri)
        with mlflow.start_run(run_id=self._run, log_system_metrics=False):
            mlflow.pytorch.log_model(
                model,
                name="model",
                signature=mlflow.models.infer_signature(inputs.numpy(), outputs.numpy()),
                input_example=inputs.numpy(),
                pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}", f"mlflow=={mlflow.__version__}"],
            )
