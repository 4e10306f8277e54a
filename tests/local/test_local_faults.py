"""What befalls pods, in the real training under the local runner: it ends with the weights of an undisturbed one.

What was seen goes into a table as well, which `make faults` prints.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import failpoint
import proofs
import psutil
import pytest
from fault_table import Row, last, lost_and_duplicated, record
from launched import until
from livejobs import Live, Part, agent, rank
from localjobs import container, load, pytorchjob, verified

from torchtally import atomic_file, events
from torchtally.environment import Places
from torchtally.local.controller import Controller, Outcome

pytestmark = pytest.mark.timeout(600)

NOTHING: Mapping[str, str] = MappingProxyType({})
MASTER, WORKER, OTHER = "demo-master-0", "demo-worker-0", "demo-worker-1"
# Few and large steps, of a model that DDP needs two buckets for: their order shows in the weights.
TASK = ["fashion-mnist", "--epochs", "2", "--batch-size", "400", "--save-seconds", "0.01", "--hidden", "256"]


class Training(Live):
    """A training under way, on a master and workers."""

    def __init__(
        self,
        folder: Path,
        policy: str,
        variables: Mapping[str, str] = NOTHING,
        task: Sequence[str] = TASK,
        workers: int = 2,
    ) -> None:
        self.output = folder / "output"
        self.struck: float | None = None  # when the last fault came
        self._failpoint = folder / "failpoint"
        run_policy = {"backoffLimit": 30, "cleanPodPolicy": "Running"}
        job = pytorchjob("", "", workers=workers, policy=policy, nprocPerNode="1", runPolicy=run_policy)
        own = {"TORCHTALLY_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "FAILPOINT": str(self._failpoint)}
        for each in (container(job), container(job, "Worker")):
            each["command"] = [sys.executable, failpoint.__file__, "run", *task, "--output", str(self.output)]
            each["env"] = [{"name": name, "value": value} for name, value in {**own, **variables}.items()]
        super().__init__(load(folder, job))

    def strike(self, act: Callable[[], None]) -> None:
        self.skip()
        self.struck = time.monotonic()
        act()
        self._failpoint.unlink(missing_ok=True)

    def pause_at(self, point: str) -> None:
        """Let rank 0 go on from where it pauses, and pause there."""
        atomic_file.replace(self._failpoint, point.encode())

    def kill(self, pod: str, part: Part) -> None:
        """kill -9 to the pod's agent, or to its trainer."""
        self.strike(self.process(pod, part).kill)

    def delete(self, pod: str) -> None:
        self.strike(lambda: self.do(lambda controller: controller.delete(pod)))

    def pause_after(self, kind: type[events.Event]) -> None:
        """Wait until rank 0 has reported such an event within an epoch, after which it pauses until the next strike."""
        self.pause_at(kind.__name__)
        while self.until_reported(MASTER, kind).position == 0:
            pass

    def verified(self, *options: str) -> subprocess.CompletedProcess[str]:
        """What verify_shards.py says of the log alone."""
        return verified(self.output.parent / "job.log", self.lines, *options)


def stop_at_once(process: psutil.Process) -> None:
    process.suspend()  # what it had begun in the kernel it ends first
    until("it has stopped", lambda: process.status() == psutil.STATUS_STOPPED)


@dataclass(frozen=True)
class Fault:
    name: str
    policy: str
    strike: Callable[[Training], None]
    restarts: bool = True
    next_step: type[events.Event] | None = events.Step  # what shows it
    nightly: bool = False  # left to `make faults`, as `make e2e` has it on a cluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of the weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Training(folder, "OnFailure") as training:
        training.end()
    return weights(training)


def weights(training: Training) -> str:
    return proofs.model(training.output / "proof.json")


def ends_well(folder: Path, undisturbed: str, fault: Fault, variables: Mapping[str, str] = NOTHING) -> None:
    with Training(folder, fault.policy, variables) as training:
        fault.strike(training)
        ended = training.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED, "\n".join(training.lines)
    restarts = sum(training.starts.values()) - len(training.starts)
    verified = training.verified("--json")
    report = json.loads(verified.stdout)
    lost, duplicated = lost_and_duplicated(report)
    same = weights(training) == undisturbed
    at = training.struck
    assert at is not None
    stepped = next((each - at for each in moments(training, fault.next_step) if each > at), None)
    started, entered = (last(some, at, stepped) for some in (training.started, moments(training, events.Started)))
    record("local", Row(fault.name, fault.policy, restarts, lost, duplicated, same, started, entered, stepped))
    assert verified.returncode == 0, report["problems"]
    assert same
    assert (lost, duplicated) == (0, 0)
    assert bool(restarts) is fault.restarts
    assert (stepped is None) is (fault.next_step is None)
    starts_again = fault.restarts and stepped is not None
    assert (started is not None) is (entered is not None) is starts_again


def moments(training: Training, event: type[events.Event] | None) -> list[float]:
    """When pods reported it."""
    reported = [(each.when, record.event) for each in training.heard if (record := events.read(each.text))]
    return [when for when, each in reported if event and isinstance(each, event)]


def kill_the_trainer(pod: str, training: Training) -> None:
    training.pause_after(events.Saved)
    training.kill(pod, rank)


def kill_at_rendezvous(training: Training) -> None:
    training.until_reported(WORKER, events.Started)
    training.kill(WORKER, agent)


def delete_at_rendezvous(training: Training) -> None:
    training.until_reported(MASTER, events.Started)
    training.delete(MASTER)


def kill_during_a_save(training: Training) -> None:
    training.pause_after(events.Saved)
    training.pause_at(failpoint.WRITING)
    folder = training.output / "checkpoints"
    until("a checkpoint is half written", lambda: next(folder.glob(".epoch-*.checkpoint.*"), None))
    training.kill(MASTER, rank)


def hold_the_model_back(training: Training) -> Path:
    """Let the training come to its end, but not to its model: a folder, which is returned, is in the way."""
    folder = training.output / "model.pt"
    (folder / "not-empty").mkdir(parents=True)
    training.until_reported(MASTER, events.WriteFailed)
    return folder


def kill_after_the_last_step(training: Training) -> None:
    folder = hold_the_model_back(training)
    training.kill(MASTER, rank)
    shutil.rmtree(folder)


def kill_after_the_end(training: Training) -> None:
    folder = hold_the_model_back(training)
    other = training.process(OTHER, rank)
    stop_at_once(other)  # nobody is done before all have seen the model
    shutil.rmtree(folder)
    training.until_reported(MASTER, events.Complete)
    training.strike(lambda: training.do(lambda controller: controller.kill(MASTER)))
    other.resume()


def delete(pod: str, training: Training) -> None:
    training.pause_after(events.Saved)
    training.delete(pod)


def ask_the_agent_to_end(training: Training) -> None:
    training.pause_after(events.Saved)
    asked = training.process(WORKER, agent)
    training.strike(lambda: asked.send_signal(signal.SIGTERM))
    assert training.until_reported(MASTER, events.Stopped).saved


def kill_twice(training: Training) -> None:
    training.pause_after(events.Saved)
    training.kill(OTHER, rank)
    training.until_reported(OTHER, events.Started)  # before they have met again
    training.kill(MASTER, agent)


def freeze(training: Training) -> None:
    training.pause_after(events.Saved)
    training.strike(lambda: training.do(lambda controller: controller.freeze(OTHER)))
    time.sleep(5)  # what a freeze is made of
    training.do(lambda controller: controller.thaw(OTHER))


def suspend(training: Training) -> None:
    training.pause_after(events.Saved)
    training.strike(lambda: training.do(Controller.suspend))
    assert training.until_reported(MASTER, events.Stopped).saved
    training.do(Controller.resume)


def fill_the_folder(training: Training) -> None:
    """By a limit on the size of files, which needs no root and which root does not pass by."""
    training.pause_after(events.Saved)
    trainer = training.process(MASTER, rank)
    before = trainer.rlimit(psutil.RLIMIT_FSIZE)
    full = (1 << 16, before[1])
    for limit, outcome in ((full, events.SaveFailed), (before, events.Saved), (full, events.SaveFailed)):
        trainer.rlimit(psutil.RLIMIT_FSIZE, limit)
        training.pause_after(outcome)
    training.strike(trainer.kill)


FAULTS = [
    Fault("kill -9 the trainer in the master", "OnFailure", partial(kill_the_trainer, MASTER), nightly=True),
    Fault("kill -9 the trainer in a worker", "ExitCode", partial(kill_the_trainer, WORKER)),
    Fault("kill -9 a worker's agent, at rendezvous", "OnFailure", kill_at_rendezvous, nightly=True),
    Fault("delete the master pod, at rendezvous", "ExitCode", delete_at_rendezvous, nightly=True),
    Fault("delete a worker pod", "OnFailure", partial(delete, WORKER), nightly=True),
    Fault("delete the master pod", "ExitCode", partial(delete, MASTER), nightly=True),
    Fault("kill -9 the trainer in the master, during a save", "OnFailure", kill_during_a_save, nightly=True),
    Fault(
        "kill -9 the trainer in the master, after the last step",
        "ExitCode",
        kill_after_the_last_step,
        next_step=None,
        nightly=True,
    ),
    Fault("kill -9 the master pod, after model.pt", "OnFailure", kill_after_the_end, next_step=None, nightly=True),
    Fault("SIGTERM to a worker", "ExitCode", ask_the_agent_to_end, nightly=True),
    Fault("kill -9 a worker's trainer, then the master's agent", "ExitCode", kill_twice, nightly=True),
    Fault("freeze a pod for 5 s", "OnFailure", freeze, restarts=False, next_step=events.Epoch, nightly=True),
    Fault("suspend the job, and resume it", "OnFailure", suspend, nightly=True),
    Fault(
        "no room for checkpoints for a while, then kill -9 the trainer in the master",
        "OnFailure",
        fill_the_folder,
        nightly=True,
    ),
]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=re.sub(r"\W+", "-", fault.name), marks=[pytest.mark.nightly] if fault.nightly else [])
        for fault in FAULTS
    ],
)
def test_ends_with_the_weights_of_an_undisturbed_training(tmp_path: Path, undisturbed: str, fault: Fault) -> None:
    if fault.strike is fill_the_folder and not hasattr(psutil, "RLIMIT_FSIZE"):
        pytest.skip("this system sets no limit for a process that runs")
    ends_well(tmp_path, undisturbed, fault)


class SlowMirror(ThreadingHTTPServer):
    """A proxy that answers every request with the beginning of a file, and then with nothing more."""

    daemon_threads = True

    def __init__(self) -> None:
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Slow)


class _Slow(BaseHTTPRequestHandler):
    server: SlowMirror

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        with suppress(OSError):  # who asked is gone
            self.wfile.write(b"\x1f\x8b")
            self.server.over.wait()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def slow_mirror() -> Iterator[str]:
    server = SlowMirror()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.nightly
def test_while_data_are_fetched(tmp_path: Path, undisturbed: str, slow_mirror: str) -> None:
    """One pod fetches, the others wait for it; it is deleted when the data have come from elsewhere."""
    cache = tmp_path / "cache"
    places = Places.from_env(os.environ)
    source = places.data or places.cache / "fashion-mnist"

    def delete_who_fetches(training: Training) -> None:
        training.until("torchtally: fetching http://")
        (pod,) = {match[1] for line in training.lines if (match := re.match(r"\[(.+)\] torchtally: fetching", line))}
        for file in source.glob("*-ubyte*"):
            partly = cache / "fashion-mnist" / "partly"
            shutil.copy(file, partly)
            partly.rename(partly.with_name(file.name))
        training.delete(pod)

    fault = Fault("delete a pod, while it fetches data", "ExitCode", delete_who_fetches)
    variables = {"TORCHTALLY_DATA": "", "TORCHTALLY_CACHE": str(cache), "http_proxy": slow_mirror, "no_proxy": ""}
    ends_well(tmp_path, undisturbed, fault, variables)


@pytest.mark.nightly
def test_pods_that_count_their_restarts_start_again_in_place(tmp_path: Path, undisturbed: str) -> None:
    with Training(tmp_path, "ExitCode", {"TORCHTALLY_RETRIES": "6"}) as training:
        kill_the_trainer(WORKER, training)
        training.until_reported(MASTER, events.Resumed)
        kill_the_trainer(MASTER, training)
        ended = training.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert set(training.starts.values()) == {1}
    verified = training.verified("--json")
    assert verified.returncode == 0, verified.stdout
    assert lost_and_duplicated(json.loads(verified.stdout)) == (0, 0)
    assert weights(training) == undisturbed


@pytest.mark.nightly
def test_a_parameter_server_that_dies_starts_again_with_all_others_from_the_beginning(tmp_path: Path) -> None:
    with Training(tmp_path, "OnFailure", task=["parameter-server", "--epochs", "40"], workers=2) as training:
        server = training.process(MASTER, rank)
        training.until_reported(MASTER, events.Epoch, epoch=2)
        server.kill()
        training.until(f"rank 0 ({MASTER}) was ended by signal 9")
        training.until_reported(MASTER, events.Epoch, epoch=1)
        ended = training.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert set(training.starts.values()) == {2}

    proof = training.output / "proof.json"
    assert proofs.predicate(proof).holds
    verified = training.verified()
    assert verified.returncode == 0, verified.stdout
    assert "3 ranks, train 40 epochs, test 40 epochs" in verified.stdout
