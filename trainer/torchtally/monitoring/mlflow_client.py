"""Rank 0's record of a run in MLflow, which neither stops nor slows the training, whatever the server does.

A process beside the rank (mlflow_process.py) imports MLflow and waits for its server; the rank writes lines to its
pipe.
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from torchtally.accounting.tally import Run
from torchtally.errors import Refused, Stopped
from torchtally.monitoring.callback import Callback

# Seconds for the record of a run that has ended. One that is stopped has no time for it.
_PATIENCE = {"FINISHED": 180.0, "FAILED": 10.0, "KILLED": 3.0}

Status = Literal["FINISHED", "FAILED", "KILLED"]


def check() -> None:
    """Raise Refused where MLflow is not installed."""
    if importlib.util.find_spec("mlflow") is None:
        raise Refused(
            "--mlflow needs the extra `mlflow`: pip install 'torchtally[mlflow]', or an image with EXTRAS=mlflow"
        )


@contextmanager
def tracked(experiment: str, run: Run, options: Mapping[str, Any], output: Path, example: Any) -> Iterator["Tracker"]:
    """The record of what is done in the `with`, the model and proof with it.

    `example`: inputs of the model, two rows or more, as nested lists.
    """
    tracker = Tracker(experiment, run, options, output)
    try:
        yield tracker
    except Stopped:
        tracker.end("KILLED")
        raise
    except BaseException:
        tracker.end("FAILED")
        raise
    tracker.end("FINISHED", example)


class Tracker(Callback):
    """The record of a run: in MLflow it is one run, however often it starts again."""

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

    def metrics(self, step: int, **values: float) -> None:
        self._send(step=step, time=time.time_ns() // 1_000_000, metrics=values)

    def end(self, status: Status, example: Any = None) -> None:
        """The run has ended: with FINISHED, its model and proof are recorded. Waits for that, but not for long."""
        self._send(end=status, example=example)
        if self._process is None:
            return
        try:
            self._process.wait(_PATIENCE[status])
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if status == "FINISHED":
                _say(f"MLflow did not take all of the record within {_PATIENCE[status]:.0f} s; the run is done without")

    def _send(self, **message: Any) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message, default=str) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._process = None
            _say("the process that records the run in MLflow has ended; the training goes on without")


def _say(sentence: str) -> None:
    print(f"torchtally: {sentence}", file=sys.stderr, flush=True)
