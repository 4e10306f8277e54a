"""A proof outlives its job: signed, kept in a registry, and verified when the job and its logs are gone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import CHART, KIND_VALUES, LIMIT, ROOT, Namespace, data_values, run, verify, wait_for
from test_jobs import JOBS, asked
from test_release import key_pair

pytestmark = pytest.mark.nightly


def test_a_proof_is_verified_after_its_job_and_logs_are_gone(
    own_cluster: None, operator: None, namespace: Namespace, tmp_path: Path
) -> None:
    run(str(ROOT / "tools/install.py"), "cosign", "oras")
    keys, results = key_pair(tmp_path / "keys"), tmp_path / "results"
    environment = os.environ | keys | {"PYTHON": sys.executable}

    def proof(*command: object, code: int = 0) -> str:
        script = [str(ROOT / "scripts/proof.sh"), *map(str, command)]
        ended = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=LIMIT)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    namespace.install(*KIND_VALUES, *data_values())
    namespace.wait_for_job("demo", "Succeeded")
    verify(namespace)
    told = asked(namespace, "verify", "demo")
    asked(namespace, "fetch", "demo", str(results))
    stated = json.loads((results / "proof.json").read_text())["predicate"]
    assert stated["image"].endswith(os.environ["E2E_IMAGE"].partition("@")[2])
    assert f"\nversion: {stated['chart']}\n" in (CHART / "Chart.yaml").read_text()
    signed = proof("sign", results / "proof.json", results / "model.pt").strip()
    pushed = proof("push", f"{os.environ['E2E_REGISTRY']}/model:1", signed, results / "model.pt").strip()

    namespace.helm("uninstall", "demo", "--wait")
    wait_for("the pods to be gone", lambda: not namespace.list("pod"))
    assert "no PyTorchJob demo in namespace" in run(*JOBS, "verify", "demo", "-n", namespace.name, check=False).stderr
    shutil.rmtree(results)
    restored = proof("pull", pushed, tmp_path / "restored").strip()
    found = proof("verify", restored, tmp_path / "restored/model.pt")
    # In the words of the verifier about the logs.
    note = f"note: {tmp_path / 'restored/model.pt'} is the model.pt of the proof\n"
    assert found.replace(note, "") == told
    other = tmp_path / "other.pt"
    other.write_bytes(b"another model")
    proof("verify", restored, other, code=1)
