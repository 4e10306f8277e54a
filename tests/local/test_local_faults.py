"""What befalls pods, in the real training under the local runner: it ends with the weights of an undisturbed one."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from localjobs import RUN_LOCAL, Object, container, pytorchjob, start_script, until, write

pytestmark = pytest.mark.timeout(300)

EPOCHS = 4
WORKERS = 2


def training(output: Path, policy: str) -> Object:
    """Few and large steps, on 3 pods."""
    job = pytorchjob("", "", workers=WORKERS, policy=policy, nprocPerNode="1", runPolicy={"backoffLimit": 30})
    options = ["--epochs", str(EPOCHS), "--batch-size", "400", "--output", str(output), "--save-seconds", "0.5"]
    for kind in ("Master", "Worker"):
        container(job, kind)["command"] = [sys.executable, "-m", "torchtally.cli", "run", "fashion-mnist", *options]
        container(job, kind)["env"] = [
            {"name": "TORCHTALLY_DEVICE", "value": "cpu"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
        ]
    return job


@dataclass
class Training:
    """A training under way."""

    runner: subprocess.Popen[str]
    log: list[str]

    def until(self, *texts: str) -> None:
        self.log += until(self.runner, *texts)

    def process(self, pod: str, part: str) -> psutil.Process:
        """The pod's agent (torchtally.cli) or its rank (torchtally.worker)."""
        (found,) = [
            process
            for process in psutil.Process(self.runner.pid).children(recursive=True)
            if part in process.cmdline() and process.environ().get("HOSTNAME") == pod
        ]
        return found

    def end(self) -> None:
        out, err = self.runner.communicate(timeout=240)
        self.log += out.splitlines()
        assert self.runner.returncode == 0, "\n".join([*self.log, err])


def train(folder: Path, policy: str = "OnFailure", disturb: Callable[[Training], None] = lambda training: None) -> str:
    """The SHA-256 of the weights that come of it; the proof holds by its log alone."""
    running = Training(start_script(write(folder, training(folder / "output", policy))), [])
    try:
        disturb(running)
        running.end()
    finally:
        running.runner.kill()
        running.runner.wait()
    proof = json.loads((folder / "output/proof.json").read_text())
    assert proof["holds"]
    log = folder / "job.log"
    log.write_text("\n".join(running.log))
    script = str(RUN_LOCAL.parent / "verify_shards.py")
    verified = subprocess.run([sys.executable, script, str(log)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    model: str = proof["model"]
    return model


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("undisturbed"))


def kill_before_the_first_step(training: Training) -> None:
    training.until("is pod 2 of 3")
    training.process("demo-worker-0", "torchtally.cli").kill()


def kill_twice(training: Training) -> None:
    training.until("epoch 1/4: loss")
    training.process("demo-worker-1", "torchtally.worker").kill()
    training.until("epoch 2/4: loss")
    training.process("demo-master-0", "torchtally.worker").kill()


def ask_a_pod_to_end(training: Training) -> None:
    training.until("epoch 1/4: loss")
    training.process("demo-worker-0", "torchtally.cli").send_signal(signal.SIGTERM)
    training.until("demo-master-0] torchtally: stopped by signal 15, after a step and a checkpoint")


def freeze(training: Training) -> None:
    training.until("epoch 1/4: loss")
    rank = training.process("demo-worker-1", "torchtally.worker")
    rank.suspend()
    with pytest.raises(psutil.TimeoutExpired):
        rank.wait(timeout=5)
    rank.resume()


@pytest.mark.parametrize(
    ("policy", "disturb"),
    [
        ("OnFailure", kill_before_the_first_step),
        ("ExitCode", kill_twice),
        ("ExitCode", ask_a_pod_to_end),
        ("OnFailure", freeze),
    ],
)
def test_ends_with_the_weights_of_an_undisturbed_training(
    tmp_path: Path, undisturbed: str, policy: str, disturb: Callable[[Training], None]
) -> None:
    assert train(tmp_path, policy, disturb) == undisturbed
