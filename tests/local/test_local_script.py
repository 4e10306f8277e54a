"""scripts/run_local.py as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from localjobs import container, pod_spec, pytorchjob, run_script, write
from messages import plain

ROOT = Path(__file__).resolve().parents[2]


def test_a_hand_written_manifest(tmp_path: Path) -> None:
    """As found in the wild: bash, GPUs, no nprocPerNode, Istio, a Service beside it."""
    (tmp_path / "main.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    text = f"""
apiVersion: v1
kind: Service
metadata: {{name: dashboard}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: mnist
  namespace: kubeflow
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: Never
      template:
        metadata:
          annotations:
            sidecar.istio.io/inject: "false"
        spec:
          nodeSelector: {{gpu: a100}}
          tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
          volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
          containers:
            - name: pytorch
              image: registry.example/mnist:latest
              imagePullPolicy: Always
              command: [bash, -c, "cd {tmp_path} && python main.py"]
              resources: {{limits: {{nvidia.com/gpu: 1, memory: 8Gi}}}}
              volumeMounts: [{{name: data, mountPath: /data}}]
    Worker: *replica
"""
    ended = run_script(write(tmp_path, text), PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == ["[mnist-master-0] rank 0 of 2", "[mnist-worker-0] rank 1 of 2"]
    late = "torchtally local: cleanPodPolicy None leaves 1 pod running: waiting until they end"  # as a worker may be
    assert [line for line in ended.stderr.splitlines() if line != late] == [
        "torchtally local: runs PyTorchJob mnist; not applied: Service dashboard",
        "torchtally local: unsupported here and ignored: 2 nvidia.com/gpu (none here), "
        "image registry.example/mnist:latest, annotation sidecar.istio.io/inject, nodeSelector, tolerations, "
        "volume data, limit memory 8Gi",
        "torchtally local: PyTorchJob mnist is successfully completed.",
    ]


def test_what_else_is_ignored(tmp_path: Path) -> None:
    job = pytorchjob("true", "true", runPolicy={"ttlSecondsAfterFinished": 5, "schedulingPolicy": {"minAvailable": 2}})
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    job["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    pod_spec(job)["containers"].append({"name": "istio-proxy", "image": "proxy"})
    pod_spec(job)["initContainers"] = [{"name": "init", "image": "init"}]
    container(job)["livenessProbe"] = {"tcpSocket": {"port": 1}}
    container(job)["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}}]
    ended = run_script(write(tmp_path, job))
    assert ended.returncode == 0
    assert (
        "torchtally local: unsupported here and ignored: ttlSecondsAfterFinished, schedulingPolicy, "
        "managedBy kueue.x-k8s.io/multikueue, "
        "label kueue.x-k8s.io/queue-name, image debian:trixie-slim, initContainers, container istio-proxy, "
        "livenessProbe, env KEY from secretKeyRef keys\n"
    ) in ended.stderr


def test_a_container_that_only_pulls_its_image_is_not_missed(tmp_path: Path) -> None:
    job = pytorchjob("true", "true")
    pod_spec(job, "Worker")["initContainers"] = [{"name": "pull", "image": "debian:trixie-slim", "command": ["true"]}]
    ended = run_script(write(tmp_path, job))
    assert "torchtally local: unsupported here and ignored: image debian:trixie-slim\n" in ended.stderr


def test_a_container_without_a_command_runs_the_entrypoint(tmp_path: Path) -> None:
    job = pytorchjob("true")
    del container(job)["command"]
    container(job)["args"] = ["run", "$(RANK)"]
    ended = run_script(write(tmp_path, job), "--entrypoint", "echo 'two words' torchtally")
    assert ended.stdout == "[demo-master-0] two words torchtally run 0\n"


def test_reads_stdin() -> None:
    ended = run_script("-", stdin=yaml.safe_dump(pytorchjob("echo hello")))
    assert ended.stdout == "[demo-master-0] hello\n"
    ended = run_script("-", stdin="")
    assert plain(ended.stderr) == "torchtally local: stdin: no PyTorchJob and no TrainJob in it, only nothing\n"


def test_outcome_as_json(tmp_path: Path) -> None:
    # The master's end is the job's, after which nothing restarts: it waits for the worker's second run.
    master = f"until test -e {tmp_path}/second; do sleep 0.05; done"
    worker = f"test -e {tmp_path}/first && exec touch {tmp_path}/second; touch {tmp_path}/first; exit 1"
    ended = run_script(write(tmp_path, pytorchjob(master, worker)), "--json")
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "job": "demo",
        "namespace": "default",
        "outcome": "Succeeded",
        "message": "PyTorchJob demo is successfully completed.",
        "pods": [
            {"name": "demo-master-0", "phase": "Succeeded", "exitCode": 0, "restarts": 0},
            {"name": "demo-worker-0", "phase": "Succeeded", "exitCode": 0, "restarts": 1},
        ],
        "observation": None,
    }


def test_a_suspended_job_is_not_run(tmp_path: Path) -> None:
    ended = run_script(write(tmp_path, pytorchjob("echo ran", runPolicy={"suspend": True})), "--json")
    assert ended.returncode == 1
    assert "torchtally local: PyTorchJob demo is suspended." in ended.stderr
    told = json.loads(ended.stdout)
    assert (told["outcome"], told["message"], told["pods"]) == ("Suspended", "PyTorchJob demo is suspended.", [])


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
def test_runs_the_examples(example: str) -> None:
    ended = run_script(str(ROOT / "examples" / example), "--entrypoint", "echo", PATH="/usr/bin:/bin")
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[:3] for line in sorted(ended.stdout.splitlines())] == [
        [f"[{pod}]", "run", "fashion-mnist"]
        for pod in ("demo-master-0", "demo-worker-0", "demo-worker-1", "demo-worker-2")
    ]


def test_without_its_packages_it_says_where_they_are() -> None:
    script = ROOT / "scripts/run_local.py"
    ended = subprocess.run([sys.executable, "-S", script, "-f", "job.yaml"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == (
        "torchtally local: the Python package msgspec is missing: run `make scripts`, then `. .venv/bin/activate`\n"
    )


def test_a_log_has_all_lines_and_the_terminal_those_for_people(tmp_path: Path) -> None:
    lines = ["TORCHTALLY {}", "epoch 1", "TORCHTALLY-EVENT {}", "TORCHTALLYING"]
    manifest = write(tmp_path, pytorchjob(f"printf '%s\\n' {' '.join(f'{line!r}' for line in lines)}", policy="Never"))
    log = tmp_path / "job.log"
    ended = run_script(manifest, "--log", str(log))
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == ["[demo-master-0] epoch 1", "[demo-master-0] TORCHTALLYING"]
    assert log.read_text().splitlines() == [f"[demo-master-0] {line}" for line in lines]


def test_a_log_that_cannot_be_written_is_refused_before_the_job_runs(tmp_path: Path) -> None:
    log = tmp_path / "no" / "job.log"
    ended = run_script(write(tmp_path, pytorchjob(f"touch {tmp_path}/ran", policy="Never")), "--log", str(log))
    assert (ended.returncode, plain(ended.stderr)) == (
        2,
        f"torchtally local: --log {log} cannot be written: No such file or directory\n",
    )
    assert not (tmp_path / "ran").exists()
