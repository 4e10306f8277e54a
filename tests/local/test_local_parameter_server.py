"""The parameter server's job as its manifest says: it dies, all pods start again, and the new run is a whole one."""

import subprocess
import sys
from pathlib import Path

import proofs
import pytest
from livejobs import Live, rank
from localjobs import RUN_LOCAL, Object, container, load, pytorchjob

from local.controller import Outcome
from torchtally import events

pytestmark = pytest.mark.timeout(600)

MASTER, SERVER = "demo-master-0", "demo-worker-0"


def document(output: Path) -> Object:
    run_policy = {"backoffLimit": 30, "cleanPodPolicy": "Running"}
    job = pytorchjob("", "", workers=3, policy="OnFailure", nprocPerNode="1", runPolicy=run_policy)
    options = ["--epochs", "40", "--output", str(output)]
    variables = {"TORCHTALLY_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    for kind in ("Master", "Worker"):
        container(job, kind)["command"] = [sys.executable, "-m", "torchtally.cli", "run", "parameter-server", *options]
        container(job, kind)["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return job


@pytest.mark.nightly
def test_a_server_that_dies_starts_again_with_all_others_from_the_beginning(tmp_path: Path) -> None:
    with Live(load(tmp_path, document(tmp_path / "output"))) as live:
        server = live.process(SERVER, rank)
        live.until_reported(MASTER, events.Epoch, epoch=2)
        server.kill()
        live.until(f"rank 1 ({SERVER}) was ended by signal 9")
        live.until_reported(MASTER, events.Epoch, epoch=1)
        ended = live.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert set(live.starts.values()) == {2}

    proof = tmp_path / "output" / "proof.json"
    assert proofs.predicate(proof).holds
    (last,) = (line for line in proofs.lines(proof) if line["phase"] == "all")
    log = tmp_path / "job.log"
    log.write_text("\n".join(live.lines))
    script = [sys.executable, str(RUN_LOCAL.parent / "verify_shards.py"), str(log), "--run", last["run"]]
    verified = subprocess.run(script, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert "2 ranks, train 40 epochs, test 40 epochs" in verified.stdout
