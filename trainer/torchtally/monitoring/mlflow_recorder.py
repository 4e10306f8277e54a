"""The recording of a run in MLflow by a thread of rank 0, so that training never waits for a server.

MLflow's own asynchronous logging does not do: Python would not end before it has an answer.
"""

import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from torchtally.errors import Stopped, require
from torchtally.log import log
from torchtally.monitoring.callback import Callback, Run

_RUN, _PROOF = "torchtally.run", "torchtally.proof"  # tags
_MAX_PENDING = 100_000  # values; beyond it the oldest are dropped
_BATCH_SIZE = 1000  # values in a request: MLflow's maximum

Status = Literal["FINISHED", "FAILED", "KILLED"]
Trained = Callable[[], tuple[nn.Module, Tensor]]  # the trained model on the CPU, and inputs: two rows or more


def check(experiment: str) -> None:
    """Raise Refused if MLflow is not installed."""
    needs = f"the record of the run in the experiment {experiment!r} (--mlflow, TORCHTALLY_MLFLOW) needs"
    require("mlflow", needs, "mlflow")


@contextmanager
def recorder(
    experiment: str, run: Run, options: Mapping[str, Any], output: Path, trained: Trained | None
) -> Iterator["Recorder"]:
    """Record the training in the `with` block, and at its end the proof.

    With `trained`, `output` has the proof, and the model is recorded as well. Without it, the lines of the run are the
    proof.
    """
    recorder = Recorder(experiment, run, options, output, trained)
    try:
        yield recorder
    except Stopped:
        recorder.end("KILLED")
        raise
    except BaseException:
        recorder.end("FAILED")
        raise
    recorder.end("FINISHED")


class Recorder(Callback):
    """Records a run. All attempts of a run are one run of MLflow.

    Attributes:
        patience: Seconds to wait for the record of a run that has ended. A stopped pod has only its grace period.
        pause: Seconds after a failure, beside the retries of MLflow itself.
    """

    patience: ClassVar[dict[Status, float]] = {"FINISHED": 180.0, "FAILED": 10.0, "KILLED": 3.0}
    pause = 10.0

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
        self._values: deque[tuple[str, float, int, int]] = deque(maxlen=_MAX_PENDING)
        self._batch: list[tuple[str, float, int, int]] = []  # not accepted yet
        self._lines: list[Mapping[str, Any]] = []  # of all ranks together
        self._holds = True
        self._failing = self._left = False
        self._status: Status | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True, name="torchtally-mlflow")
        self._thread.start()

    def metrics(self, step: int, **values: float) -> None:
        at = time.time_ns() // 1_000_000
        self._values.extend((name, value, at, step) for name, value in values.items())

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._lines.append(line)
        self._holds &= holds

    def complete(self, line: Mapping[str, Any]) -> None:
        self._lines.append(line)

    def end(self, status: Status) -> None:
        """Record the end of the run and, with FINISHED, its model and proof. Waits no longer than `patience`."""
        self._status = status
        self._ended.set()
        self._thread.join(self.patience[status])
        self._left = True
        if self._thread.is_alive() and status == "FINISHED":
            log.warning(f"MLflow did not accept the complete record of the run within {self.patience[status]:.0f} s")

    def _record(self) -> None:
        """Send what is pending, each second and at the end. The thread's whole work."""
        while not self._left:
            over = self._ended.wait(1.0)
            try:
                self._send()
                if over:
                    return self._finish()
            except Exception as error:  # no error of MLflow's may end the recording
                self._warn_once(error)
                if over:
                    time.sleep(1.0)
                else:
                    self._ended.wait(self.pause)

    def _send(self) -> None:
        """Raises MLflow's exceptions."""
        from mlflow.entities import Metric

        if self._client is None:
            self._client = self._connected()
        while self._batch or self._values:
            if not self._batch:
                self._batch = [self._values.popleft() for _ in range(min(_BATCH_SIZE, len(self._values)))]
            self._client.log_batch(self._run, metrics=[Metric(*each) for each in self._batch])
            self._batch = []
        if self._failing or not self._system:
            self._sample()
        if self._failing:
            self._failing = False
            log.info("MLflow answers again and has all values of the run so far")

    def _connected(self) -> Any:
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

    def _finish(self) -> None:
        """Record the status of the run and, with FINISHED, its proof and a task's model."""
        assert self._client
        self._system.finish()
        if self._status == "FINISHED":
            file, holds = self._output / "proof.json", self._holds
            if self._trained:
                holds = json.loads(file.read_bytes())["predicate"]["holds"]
                self._client.log_artifact(self._run, str(file))
                self._log_model(*self._trained())
            else:
                self._client.log_dict(self._run, {"holds": holds, "lines": self._lines}, "lines.json")
            verdict = "every sample as the contract says" if holds else "does not hold"
            self._client.set_tag(self._run, _PROOF, verdict)
        self._client.set_terminated(self._run, self._status)

    def _log_model(self, model: nn.Module, inputs: Tensor) -> None:
        import mlflow
        import torch

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

    def _warn_once(self, error: Exception) -> None:
        """Log the first of several failures in a row, but not while Python may exit, which that can abort."""
        if not self._failing and not self._left:
            self._failing = True
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = re.sub(r"//[^/@\s]+@", "//", lines[0])[:200]  # without credentials of a URI
            log.warning(f"MLflow does not accept the record of this run, and requests are retried: {reason}")
