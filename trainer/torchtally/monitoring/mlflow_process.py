"""The child process of rank 0 that records a run in MLflow, and retries requests that the server does not accept.

It reads JSON lines from stdin (see mlflow_client.py): first the run, then values, and last the run's end.
"""

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from torchtally.log import log

# Limits of one request. This process retries it.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

_RUN, _PROOF = "torchtally.run", "torchtally.proof"  # tags
_FILE, _LINES = "proof.json", "lines.json"
_MAX_PENDING = 100_000  # values; beyond it the oldest are dropped
_BATCH_SIZE = 1000  # values in a request: MLflow's maximum
_SAMPLE_INTERVAL = 10.0  # seconds between two samples of the system metrics
_FIRST_RETRY, _MAX_RETRY = 2.0, 60.0  # seconds before a retry; doubled each time
_END_TIMEOUT = 30.0  # seconds of retries after the run has ended
_SILENCED = logging.WARNING  # messages of MLflow and alembic up to this level: this process reports errors in one line

ModelOf = Callable[[str, Mapping[str, Any]], Any]  # (task, options) -> an untrained torch.nn.Module


def main(model_of: ModelOf) -> None:
    """Record the run that stdin describes; `model_of` makes the untrained model of a task from its options."""
    logging.disable(_SILENCED)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the rank sends the end, or closes the pipe
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[messages], daemon=True).start()
    start = messages.get()
    if start is None:
        return
    record = Record(start, model_of)
    system = SystemMetrics()
    end, orphaned, retry, due, until = None, False, _FIRST_RETRY, 0.0, 0.0
    while not orphaned:
        for message in _available(messages):
            if message is None:
                orphaned = end is None  # the rank has been killed
            elif "metrics" in message:
                record.add(message["metrics"], message["step"], message["time"])
            else:
                end, due, until = message, 0.0, time.monotonic() + _END_TIMEOUT
        record.add(*system.sample())
        if time.monotonic() < due:
            continue
        try:
            record.send()
            if end is not None:
                return record.end(end["end"], end["example"], end["proof"])
            retry = _FIRST_RETRY
        except Exception as error:  # no error of MLflow's may end the recording
            record.warn_once(error)
            if end is not None:
                if time.monotonic() > until:
                    return _log(logging.WARNING, "the run has ended, and MLflow does not have its complete record")
                retry = _FIRST_RETRY
            due = time.monotonic() + retry
            retry = min(2 * retry, _MAX_RETRY)


class Record:
    """A run of MLflow's, and the values that have not been sent to it."""

    def __init__(self, start: dict[str, Any], model_of: ModelOf) -> None:
        self._start, self._output, self._model_of = start, Path(start["output"]), model_of
        self._values: deque[tuple[str, float, int, int]] = deque(maxlen=_MAX_PENDING)
        self._run = ""  # MLflow's id of the run, once the server has answered
        self._failing = False

    def add(self, values: dict[str, float], step: int, at: int) -> None:
        """Queue values for the next `send`; `at` is in milliseconds since 1970."""
        self._values.extend((name, value, step, at) for name, value in values.items())

    def send(self) -> None:
        """Send all queued values. Raises MLflow's exceptions."""
        from mlflow.entities import Metric

        if not self._run:
            self._run = self._find()
        while self._values:
            batch = [self._values[place] for place in range(min(_BATCH_SIZE, len(self._values)))]
            metrics = [Metric(name, value, at, step) for name, value, step, at in batch]
            self._client.log_batch(self._run, metrics=metrics)
            for _ in batch:
                self._values.popleft()
        if self._failing:
            self._failing = False
            _log(logging.INFO, "MLflow answers again and has all values of the run so far")

    def end(self, status: str, example: Any, proof: Any) -> None:
        """Record the status of the run and, with FINISHED, its proof and a task's model.

        The proof of a task, and its model, are in the output folder.
        """
        if status == "FINISHED":
            found = proof or json.loads((self._output / _FILE).read_bytes())["predicate"]
            verdict = "every sample as the contract says" if found["holds"] else "does not hold"
            self._client.set_tag(self._run, _PROOF, verdict)
            if proof:
                self._client.log_dict(self._run, proof, _LINES)
            else:
                self._client.log_artifact(self._run, str(self._output / _FILE))
                self._log_model(example)
        self._client.set_terminated(self._run, status)

    def warn_once(self, error: Exception) -> None:
        """Log the first of several failures in a row."""
        if not self._failing:
            self._failing = True
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = re.sub(r"//[^/@\s]+@", "//", lines[0])[:200]  # without credentials of a URI
            _log(logging.WARNING, f"MLflow does not accept the record of this run, and requests are retried: {reason}")

    def _find(self) -> str:
        """The MLflow run that an earlier attempt tagged with the run's id, or else a new one."""
        import mlflow
        from mlflow.entities import Param

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            self._output.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(uri or f"sqlite:///{self._output}/mlflow.db")
        self._client = mlflow.MlflowClient()
        name, run = self._start["experiment"], self._start["run"]
        experiment = self._client.get_experiment_by_name(name)
        place = None if uri else (self._output / "mlflow").as_uri()  # MLflow's default is the working directory
        number = experiment.experiment_id if experiment else self._client.create_experiment(name, place)
        mlflow_run: str
        if found := self._client.search_runs([number], f"tags.`{_RUN}` = '{run}'", max_results=1):
            mlflow_run = found[0].info.run_id
            self._client.update_run(mlflow_run, status="RUNNING")
        else:
            tags = {_RUN: run, "task": self._start["task"]}
            mlflow_run = self._client.create_run(number, tags=tags, run_name=f"{self._start['task']}-{run}").info.run_id
            parameters = [Param(key, str(value)) for key, value in self._start["options"].items()]
            self._client.log_batch(mlflow_run, params=parameters)
        for key, value in self._start["tags"].items():
            self._client.set_tag(mlflow_run, key, value)
        return mlflow_run

    def _log_model(self, example: Any) -> None:
        import mlflow
        import numpy as np
        import torch

        model = self._model_of(self._start["task"], self._start["options"])
        model.load_state_dict(torch.load(self._output / "model.pt", map_location="cpu", weights_only=True))
        model.eval()
        inputs = np.asarray(example, dtype=np.float32)
        with torch.no_grad():
            outputs = model(torch.from_numpy(inputs)).numpy()
        with mlflow.start_run(run_id=self._run, log_system_metrics=False):
            mlflow.pytorch.log_model(
                model,
                name="model",
                signature=mlflow.models.infer_signature(inputs, outputs),
                input_example=inputs,
                pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}", f"mlflow=={mlflow.__version__}"],
            )


class SystemMetrics:
    """The machine's metrics, with MLflow's names and monitors."""

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor

        self._monitors: list[Any] = [
            cpu_monitor.CPUMonitor(),
            disk_monitor.DiskMonitor(),
            network_monitor.NetworkMonitor(),
        ]
        with contextlib.suppress(Exception):  # of several types: no GPU, or no driver
            self._monitors.append(gpu_monitor.GPUMonitor())
        self._due, self._step = time.monotonic(), 0

    def sample(self) -> tuple[dict[str, float], int, int]:
        """Values by name, the sample's number and its time in milliseconds; no values until the next sample is due."""
        now = time.time_ns() // 1_000_000
        if time.monotonic() < self._due:
            return {}, self._step, now
        self._due = time.monotonic() + _SAMPLE_INTERVAL
        self._step += 1
        values: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return values, self._step, now


def _read(messages: SimpleQueue[Any]) -> None:
    """Read the pipe continuously, so that the rank never waits."""
    for line in sys.stdin:
        messages.put(json.loads(line))
    messages.put(None)


def _available(messages: SimpleQueue[Any]) -> list[Any]:
    """The messages in the queue; waits up to a second for the first."""
    found = []
    try:
        found.append(messages.get(timeout=1.0))
        while True:
            found.append(messages.get_nowait())
    except Empty:
        return found


def _log(level: int, message: str) -> None:
    logging.disable(logging.NOTSET)
    log.log(level, message)
    logging.disable(_SILENCED)
