"""Every task, whole, on all of its data, in each place where it runs: `make tasks`, which writes their table."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import clean_log
import pytest
from task_data import fetched
from task_table import TASKS, Task, judged

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/torchtally"
IMAGE = os.environ.get("TORCHTALLY_TASKS_IMAGE", "torchtally:cpu-keras-mlflow-spark")
LIMIT = 1800  # seconds

each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name.replace(" ", ""))


@each_task
def test_by_run_local(task: Task, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    values = ["--set", "task=", "--set-json", f"args={json.dumps(task.args)}"]
    with manifest.open("w") as file:
        helm = ["helm", "template", "demo", CHART, "--skip-tests", "--values", CHART / "ci/kind-values.yaml"]
        subprocess.run([*helm, *values], stdout=file, check=True)
    # As with the chart's Services, a port of its own; one thread a rank, for 4 on a small machine.
    environment = {**os.environ, "TORCHTALLY_OUTPUT": str(tmp_path / "output"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts/run_local.py"), "-f", str(manifest)]
    check(task, "run_local", command, environment, tmp_path / "log")


@pytest.mark.engine
@each_task
def test_by_docker_run(task: Task, tmp_path: Path) -> None:
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
        pytest.skip(f"no image {IMAGE}: `make image EXTRAS=keras,mlflow,spark` builds it")
    command = ["docker", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--tmpfs=/cache:uid=1000,mode=0775"]
    command += ["--tmpfs=/output:uid=1000,mode=0775", "--cap-drop=ALL", "--shm-size=256m", "--env=PET_NPROC_PER_NODE=4"]
    if task.data:
        command += [f"--volume={fetched(task.data)}:/data:ro", "--env=TORCHTALLY_DATA=/data"]
    check(task, "docker run", [*command, IMAGE, *task.args], None, tmp_path / "log")


def check(task: Task, where: str, command: list[str], environment: dict[str, str] | None, log: Path) -> None:
    """Run it, hold its log against the verifier and its result against what is expected, and note both."""
    began = time.monotonic()
    with log.open("w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=LIMIT)
    seconds = time.monotonic() - began
    said = log.read_text()
    assert status.returncode == 0, said[-4000:]
    clean_log.assert_clean(said)
    verify = [sys.executable, str(ROOT / "scripts/verify_shards.py"), str(log)]
    found = subprocess.run(verify, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    judged(task, where, said, found.stdout, seconds)
