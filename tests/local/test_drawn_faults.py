"""Faults that a seed draws: whatever befalls a job, it ends with the weights of an undisturbed one, and a proof.

`make faults SEEDS=100` tries so many seeds, and `SEEDS=17-17` one.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import drawn_faults
import failpoint
import proofs
import pytest
from drawn_faults import FAULTS, SCRIPT, Job, Strike
from fault_table import lost_and_duplicated
from filelock import FileLock
from livejobs import Live, Over
from localjobs import load, pytorchjob, verified

from torchtally import atomic_file, events
from torchtally.local.controller import Outcome

pytestmark = pytest.mark.timeout(600)

ALWAYS = [3, 14, 1064]  # seeds that every change is to pass


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", metafunc.config.getoption("--seeds") or ALWAYS)


class Training(Live):
    """A drawn job under way."""

    def __init__(self, folder: Path, job: Job):
        self.pods, self.output = job.pods, folder / "output"
        self.output.mkdir(parents=True)
        self._failpoint = folder / "failpoint"
        run_policy = {"backoffLimit": 100, "cleanPodPolicy": "Running"}
        document = pytorchjob(
            "", "" if job.ranks > 1 else None, job.ranks - 1, job.policy, nprocPerNode="1", runPolicy=run_policy
        )
        variables = {
            "DRAWN": json.dumps(asdict(job)),
            "FAILPOINT": str(self._failpoint),
            "OMP_NUM_THREADS": "1",
            "TORCHTALLY_DEVICE": "cpu",
            "TORCHTALLY_OUTPUT": str(self.output),
            "TORCHTALLY_PROGRESS_SECONDS": "0.000001",  # each step is reported
            **({"TORCHTALLY_RETRIES": "30"} if job.retries else {}),
        }
        for each in document["spec"]["pytorchReplicaSpecs"].values():
            (own,) = each["template"]["spec"]["containers"]
            own["command"] = [sys.executable, failpoint.__file__, "run", *self._task(job)]
            own["env"] = [{"name": name, "value": value} for name, value in variables.items()]
        super().__init__(load(folder, document))

    def _task(self, job: Job) -> list[str]:
        if job.own:
            return ["--", sys.executable, str(SCRIPT)]
        task = ["fashion-mnist", "--epochs", str(job.epochs), "--batch-size", "400", "--hidden", "64"]
        task += ["--contract", job.contract, "--save-seconds", str(job.every), "--seed", str(job.seed)]
        return [*task, *(["--checkpoints", str(self.output / "checkpoints")] if job.shared else [])]

    def pause_at(self, strike: Strike) -> None:
        """Wait until the pod pauses at the step, or has done its last one. Raises Over."""
        atomic_file.replace(self._failpoint, strike.point.encode())
        self.until(strike.point)

    def beside(self, name: str, text: str) -> None:
        """What failpoint.py reads beside its file."""
        atomic_file.replace(self._failpoint.with_suffix(f".{name}"), text.encode())

    def go_on(self) -> None:
        self._failpoint.unlink(missing_ok=True)


def train(folder: Path, job: Job, schedule: list[Strike]) -> tuple[Training, Outcome]:
    with Training(folder, job) as training:
        try:
            for strike in schedule:
                if strike.paused:
                    training.pause_at(strike)
                FAULTS[strike.fault](training, strike.pod)
                training.go_on()
        except Over:  # a fault may come too late
            training.go_on()
        return training, training.end().verdict.outcome


def told(training: Training) -> str:
    """What people read of it, in the end. All is in a file."""
    (training.output.parent / "all.log").write_text("\n".join(each.text for each in training.heard))
    texts = [each.text for each in training.heard if events.PREFIX not in each.text]
    return "\n".join([f"{training.output.parent}/all.log", *texts[-60:]])


def undisturbed(folder: Path, job: Job) -> str:
    """The hash of its weights."""
    with FileLock(folder.with_suffix(".lock")):
        known = folder.with_suffix(".txt")
        if not known.exists():
            training, outcome = train(folder, job, [])
            assert outcome is Outcome.SUCCEEDED, told(training)
            known.write_text(proofs.model(training.output / "proof.json"))
        return known.read_text()


def test_a_drawn_job_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    job, schedule = drawn_faults.job(seed), drawn_faults.schedule(seed)
    everyone = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        everyone = everyone.parent
    expected = undisturbed(everyone / f"undisturbed-{seed // drawn_faults.JOBS}", job)
    training, outcome = train(tmp_path, job, schedule)
    why = "\n".join([repr(job), *map(repr, schedule), told(training)])
    assert outcome is Outcome.SUCCEEDED, why
    report = json.loads(verified(tmp_path / "job.log", training.lines, "--json").stdout)
    assert (report["problems"], lost_and_duplicated(report)) == ([], (0, 0)), why
    assert proofs.model(training.output / "proof.json") == expected, why
