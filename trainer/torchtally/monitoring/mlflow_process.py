"""The process beside rank 0 that records a run in MLflow: what the server does not take yet is kept and sent again.

Reads JSON lines from stdin (see mlflow_client.py): who the run is, values, and how it has ended. Ends with it.
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

# A server that is away costs no more than this, and the next attempt is ours.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

_RUN, _PROOF = "torchtally.run", "torchtally.proof"  # tags
_KEPT = 100_000  # values that wait at most; then the oldest go
_BATCH = 1000  # values a request, the most that MLflow takes
_SAMPLE = 10.0  # seconds between two samples of the system's metrics
_RETRY = (2.0, 60.0)  # seconds between two attempts, at first and at last
_LAST = 30.0  # seconds in which a server that is away may come back once the run has ended


ModelOf = Callable[[str, Mapping[str, Any]], Any]  # (task, options) -> an untrained torch.nn.Module


def main(model_of: ModelOf) -> None:
    """Record the run that stdin tells of; `model_of` makes the untrained model of a task from its options."""
    logging.disable(logging.WARNING)  # MLflow's, alembic's: errors are reported below
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the rank says when it ends
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[messages], daemon=True).start()
    start = messages.get()
    if start is None:
        return
    log = Log(start, model_of)
    system = System()
    end, gone, retry, due, until = None, False, _RETRY[0], 0.0, 0.0
    while not gone:
        for message in _waiting(messages):
            if message is None:
                gone = end is None  # the rank, without a word
            elif "metrics" in message:
                log.add(message["metrics"], message["step"], message["time"])
            else:
                end, due, until = message, 0.0, time.monotonic() + _LAST
        log.add(*system.sample())
        if time.monotonic() < due:
            continue
        try:
            log.send()
            if end is not None:
                return log.end(end["end"], end["example"])
            retry = _RETRY[0]
        except Exception as error:  # whatever it is, the training is worth more
            log.say_once(error)
            if end is not None:
                if time.monotonic() > until:
                    return _say("the run has ended, and MLflow has not all of its record")
                retry = _RETRY[0]
            due = time.monotonic() + retry
            retry = min(2 * retry, _RETRY[1])


class Log:
    """One run of MLflow's, and what it has not been told yet."""

    def __init__(self, start: dict[str, Any], model_of: ModelOf) -> None:
        self._start, self._output, self._model_of = start, Path(start["output"]), model_of
        self._values: deque[tuple[str, float, int, int]] = deque(maxlen=_KEPT)
        self._run = ""  # MLflow's id, once its server has answered
        self._away = False

    def add(self, values: dict[str, float], step: int, at: int) -> None:
        """Keep values for the next `send`; `at` in milliseconds since 1970."""
        self._values.extend((name, value, step, at) for name, value in values.items())

    def send(self) -> None:
        """Tell the server all that it has not been told. Raises whatever MLflow raises."""
        from mlflow.entities import Metric

        if not self._run:
            self._run = self._find()
        while self._values:
            batch = [self._values[place] for place in range(min(_BATCH, len(self._values)))]
            metrics = [Metric(name, value, at, step) for name, value, step, at in batch]
            self._client.log_batch(self._run, metrics=metrics)
            for _ in batch:
                self._values.popleft()
        if self._away:
            self._away = False
            _say("MLflow answers again, and has been told all")

    def end(self, status: str, example: Any) -> None:
        """Record how the run has ended, and with FINISHED its proof and its model."""
        if status == "FINISHED":
            proof = json.loads((self._output / "proof.json").read_bytes())
            verdict = "every sample as the contract says" if proof["holds"] else "does not hold"
            self._client.set_tag(self._run, _PROOF, verdict)
            self._client.log_artifact(self._run, str(self._output / "proof.json"))
            self._log_model(example)
        self._client.set_terminated(self._run, status)

    def say_once(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            lines = str(error).strip().splitlines() or [type(error).__name__]
            said = re.sub(r"//[^/@\s]+@", "//", lines[0])[:200]  # credentials may stand in a URI
            _say(f"MLflow does not take the record of this run yet, which is kept and sent again: {said}")

    def _find(self) -> str:
        """The run of MLflow's that has our run's id as a tag: there since an earlier attempt, or new."""
        import mlflow
        from mlflow.entities import Param

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        mlflow.set_tracking_uri(uri or f"sqlite:///{self._output}/mlflow.db")
        self._client = mlflow.MlflowClient()
        name, run = self._start["experiment"], self._start["run"]
        experiment = self._client.get_experiment_by_name(name)
        place = None if uri else (self._output / "mlflow").as_uri()  # the default is the working directory
        number = experiment.experiment_id if experiment else self._client.create_experiment(name, place)
        mine: str
        if found := self._client.search_runs([number], f"tags.`{_RUN}` = '{run}'", max_results=1):
            mine = found[0].info.run_id
            self._client.update_run(mine, status="RUNNING")
        else:
            tags = {_RUN: run, "task": self._start["task"]}
            mine = self._client.create_run(number, tags=tags, run_name=f"{self._start['task']}-{run}").info.run_id
            parameters = [Param(key, str(value)) for key, value in self._start["options"].items()]
            self._client.log_batch(mine, params=parameters)
        for key, value in self._start["tags"].items():
            self._client.set_tag(mine, key, value)
        return mine

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


class System:
    """The machine's metrics, as MLflow names and measures them."""

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor

        self._monitors: list[Any] = [
            cpu_monitor.CPUMonitor(),
            disk_monitor.DiskMonitor(),
            network_monitor.NetworkMonitor(),
        ]
        with contextlib.suppress(Exception):  # any of several says that there is no GPU, or no driver
            self._monitors.append(gpu_monitor.GPUMonitor())
        self._due, self._step = time.monotonic(), 0

    def sample(self) -> tuple[dict[str, float], int, int]:
        """Names and values, the number of the sample and its time; no values until the next is due."""
        now = time.time_ns() // 1_000_000
        if time.monotonic() < self._due:
            return {}, self._step, now
        self._due = time.monotonic() + _SAMPLE
        self._step += 1
        values: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return values, self._step, now


def _read(messages: SimpleQueue[Any]) -> None:
    """Empty the pipe at all times, so that the rank never waits."""
    for line in sys.stdin:
        messages.put(json.loads(line))
    messages.put(None)


def _waiting(messages: SimpleQueue[Any]) -> list[Any]:
    """What has come, after a while at most."""
    found = []
    try:
        found.append(messages.get(timeout=1.0))
        while True:
            found.append(messages.get_nowait())
    except Empty:
        return found


def _say(sentence: str) -> None:
    print(f"torchtally: {sentence}", file=sys.stderr, flush=True)
