"""torchtally_jobs shows a job on a cluster: through a kill, to its end, and its results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import faults
from cluster import KIND_VALUES, LIMIT, ROOT, Namespace, args, data_values, run

JOBS = [sys.executable, str(ROOT / "scripts/torchtally_jobs.py")]
OPTIONS = args("--epochs", str(faults.EPOCHS), "--batch-size", "125", "--save-seconds", "0.2")
OPTIONS += ["--set-json", 'env=[{"name": "TORCHTALLY_PROGRESS_SECONDS", "value": "1"}]']


def asked(namespace: Namespace, *command: str, code: int = 0) -> str:
    ended = run(*JOBS, *command, "-n", namespace.name, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_a_job_is_shown_through_a_kill(operator: None, namespace: Namespace, tmp_path: Path) -> None:
    namespace.install(*KIND_VALUES, *data_values(), *OPTIONS)
    seen: list[dict[str, Any]] = []
    watch = [*JOBS, "watch", "demo", "--json", "-n", namespace.name]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        shown = map(json.loads, watching.stdout)
        try:
            with faults.held(namespace, faults.MASTER, faults.MID_EPOCH):
                while not seen or seen[-1]["attempt"] != 0:
                    seen.append(next(shown))
                faults.kill("demo-worker-1", "any")(namespace)
            namespace.wait_for_job("demo", "Succeeded")
            seen += shown
            assert watching.wait(LIMIT) == 0
        finally:
            watching.kill()
    assert seen[-1]["standing"] == "proved" and "running" in {each["standing"] for each in seen}
    assert {each["attempt"] for each in seen} >= {0, 1}
    assert any(pod["samples_per_second"] for each in seen for pod in each["pods"])
    assert any(each["loss"] for each in seen) and any(each["checkpoint"] for each in seen)
    assert any(each["seconds_left"] for each in seen)
    killed = [each for each in seen[-1]["restarts"] if each["pod"] == "demo-worker-1"]
    assert killed and killed[0]["kind"] != "consequence", seen[-1]["restarts"]

    told = json.loads(asked(namespace, "status", "demo", "--json"))
    assert {pod["name"]: pod["restarts"] for pod in told["pods"]} == dict.fromkeys(faults.PODS, 1)
    (listed,) = json.loads(asked(namespace, "list", "--json"))["jobs"]
    assert (listed["job"], listed["state"], listed["standing"]) == ("demo", "succeeded", "proved")
    assert "✓ the proof holds" in " ".join(asked(namespace, "status", "demo").split())
    asked(namespace, "fetch", "demo", str(tmp_path / "results"))
    assert {file.name for file in (tmp_path / "results").iterdir()} == {"model.pt", "proof.json", "run.json"}
    assert not [name for name in namespace.list("pod") if "fetch" in name]
    asked(namespace, "status", "another", code=2)

    namespace.kubectl("delete", "pytorchjob", "demo")
    asked(namespace, "fetch", "demo", str(tmp_path / "again"))
    model = [(tmp_path / name / "model.pt").read_bytes() for name in ("results", "again")]
    assert model[0] == model[1]
