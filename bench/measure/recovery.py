"""Recovery of a job of 4 pods from kill -9 of a rank: pods that are started again, and pods that count their restarts.

python -m bench.measure.recovery    prints a table
recovery once                       measures one kill of a worker's rank in each way, as a part of `make bench`

The local runner is the controller: it starts a pod's container again at once, where a cluster takes its time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml

from bench import machine
from bench.markdown import markdown, shown
from bench.sample import emit
from bench.spread import spread
from torchtally import events

_WORKERS = 3
_PODS = "a worker", "the master"
_WAYS = {"the pods": {}, "the ranks in their pods (`TORCHTALLY_RETRIES`)": {"TORCHTALLY_RETRIES": "6"}}
_ROUNDS = 5
_OPTIONS = ["--epochs", "2", "--batch-size", "400", "--hidden", "256", "--save-seconds", "0.2"]


def measured(more: dict[str, str], pod: str, folder: Path) -> tuple[float, float]:
    """Seconds from the end of a pod's rank to the last entry point that starts, and to the next step."""
    (path := folder / "job.yaml").write_text(yaml.safe_dump(_job(more, folder / "output")))
    command = [sys.executable, "scripts/run_local.py", "-f", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        struck, entered, stepped = 0.0, 0.0, 0.0
        assert job.stdout is not None
        for line in job.stdout:
            now = time.monotonic()
            match getattr(events.read(line), "event", None):
                case events.Saved(position=position) if position and not struck:
                    _rank(psutil.Process(job.pid), pod).kill()
                    struck = now
                case events.Started() if struck and not stepped:
                    entered = now
                case events.Resumed() if struck:
                    stepped = stepped or now
    if job.returncode or not stepped:
        sys.exit(f"the job ended with {job.returncode}")
    return entered - struck, stepped - struck


def _job(more: dict[str, str], output: Path) -> dict[str, object]:
    variables = {"TORCHTALLY_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **more}
    program = str(Path(sys.executable).with_name("torchtally"))
    container = {
        "name": "pytorch",
        "image": "none",
        "command": [program, "run", "fashion-mnist", "--output", str(output), *_OPTIONS],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    template = {"spec": {"containers": [container]}}
    replicas = {"Master": 1, "Worker": _WORKERS}
    specs = {
        kind: {"replicas": count, "restartPolicy": "ExitCode", "template": template} for kind, count in replicas.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "demo"},
        "spec": {"nprocPerNode": "1", "runPolicy": {"backoffLimit": 30}, "pytorchReplicaSpecs": specs},
    }


def _rank(runner: psutil.Process, pod: str) -> psutil.Process:
    name = "rank 0" if pod == "the master" else "rank 1"
    return next(each for each in runner.children(recursive=True) if each.name() == name)


def once(pod: str, way: str) -> tuple[float, float]:
    """What `measured` returns, of one job."""
    with tempfile.TemporaryDirectory() as folder:
        return measured(_WAYS[way], pod, Path(folder))


def table() -> Iterator[str]:
    """The lines of the table. The ways take turns, because a slow phase of the machine affects both."""
    cases = [(pod, way) for pod in _PODS for way in _WAYS]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(_ROUNDS):
        for case in cases:
            found[case].append(once(*case))
    rows = [[pod, way, *(shown(spread(values)) for values in zip(*found[pod, way], strict=True))] for pod, way in cases]
    header = ["killed rank in", "started again", "entry point, s", "resumed, s"]
    yield from markdown(header, rows, left=(0, 1))
    yield ""
    yield f"Medians of n = {_ROUNDS}, with the minimum and the maximum in brackets. {machine.sentence('torch')}"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if sys.argv[1:] == ["once"]:
        for way, again in zip(_WAYS, ("containers", "in place"), strict=True):
            emit("recovery", once(_PODS[0], way)[1], "s", "lower", killed=f"a rank of {_PODS[0]}", again=again)
    else:
        for line in table():
            print(line, flush=True)
