"""The recording of a run in MLflow by rank 0, which a slow or failing server neither stops nor slows.

A child process (mlflow_process.py) imports MLflow and waits for its server. The rank writes JSON lines to its pipe.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from torchtally.errors import Stopped, require
from torchtally.log import log
from torchtally.monitoring.callback import Callback, Run

# Seconds to wait for the record of a run that has ended. A pod that is stopped has only its grace period.
_TIMEOUT = {"FINISHED": 180.0, "FAILED": 10.0, "KILLED": 3.0}

Status = Literal["FINISHED", "FAILED", "KILLED"]


def check(experiment: str) -> None:
    """Raise Refused if MLflow is not installed."""
    needs = f"the record of the run in the experiment {experiment!r} (--mlflow, TORCHTALLY_MLFLOW) needs"
    require("mlflow", needs, "mlflow")


@contextmanager
def recorder(experiment: str, run: Run, options: Mapping[str, Any], output: Path, example: Any) -> Iterator["Recorder"]:
    """Record the training in the `with` block, and at its end the proof.

    `example`: inputs of a task's model, two rows or more, as nested lists. With it, `output` has the model and the
    proof, and the model is recorded as well. Without it, the lines of the run are the proof.
    """
    recorder = Recorder(experiment, run, options, output)
    try:
        yield recorder
    except Stopped:
        recorder.end("KILLED")
        raise
    except BaseException:
        recorder.end("FAILED")
        raise
    recorder.end("FINISHED", example)


class Recorder(Callback):
    """Records a run. All attempts of a run are one run of MLflow."""

    def __init__(self, experiment: str, run: Run, options: Mapping[str, Any], output: Path) -> None:
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "torchtally.commands.record_in_mlflow"], stdin=subprocess.PIPE, text=True
        )
        self._send(
            experiment=experiment,
            run=run.run,
            task=run.task,
            options=dict(options),
            tags={"data": run.data, "world": str(run.world), "attempt": str(run.attempt)},
            output=str(output.absolute()),
        )
        self._lines: list[Mapping[str, Any]] = []  # of all ranks together

    def metrics(self, step: int, **values: float) -> None:
        self._send(step=step, time=time.time_ns() // 1_000_000, metrics=values)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._lines.append(line)

    def complete(self, line: Mapping[str, Any]) -> None:
        self._lines.append(line)

    def end(self, status: Status, example: Any = None) -> None:
        """Record the end of the run and, with FINISHED, its model and proof. Waits up to _TIMEOUT seconds."""
        proof = {"holds": True, "lines": self._lines} if example is None and status == "FINISHED" else None
        self._send(end=status, example=example, proof=proof)
        if self._process is None:
            return
        try:
            self._process.wait(_TIMEOUT[status])
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if status == "FINISHED":
                log.warning(f"MLflow did not accept the complete record of the run within {_TIMEOUT[status]:.0f} s")

    def _send(self, **message: Any) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message, default=str) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._process = None
            log.warning("the process that records the run in MLflow has ended; the training continues without a record")
