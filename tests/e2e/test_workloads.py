"""Every task in four pods on two nodes, and what one of them tells MLflow in the cluster."""

import json
import time
from typing import Any

import nodes
import pytest
from cluster import KIND_VALUES, Namespace, Object, args, data_values, script, verify
from faults import MASTER, MID_EPOCH, PODS, kill
from task_table import TASKS, Task, judged


def install(namespace: Namespace, task: Task, image: str, *options: str) -> None:
    values = data_values(task.data) if task.data else []
    sizes = ["--set", "task=,resources.memory=3Gi"]
    namespace.install(*KIND_VALUES, *values, *args(*task.args), *sizes, *options, image=image)


def finish(namespace: Namespace, task: Task) -> str:
    """Wait for the job's end, and hold every pod's shards against the task's samples; returns the master's log."""
    namespace.wait_for_job("demo", "Succeeded")
    train, test = (samples // task.trains for samples in task.samples)
    for (phase, _), shards in verify(namespace).items():
        samples = train if phase == "train" else test
        assert shards == {pod: [rank, samples, samples, 0, 0] for rank, pod in enumerate(PODS[-task.trains :])}
    assert len({nodes.of(namespace, pod) for pod in PODS}) == 2
    return namespace.log(PODS[0])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name.replace(" ", ""))
def test_a_whole_task(operator: None, tasks_image: str, namespace: Namespace, task: Task) -> None:
    """In four pods, on two nodes."""
    began = time.monotonic()
    install(namespace, task, tasks_image)
    said = finish(namespace, task)
    seconds = time.monotonic() - began
    judged(task, "kind", said, script("verify_shards.py", "--job", "demo", "-n", namespace.name).stdout, seconds)


# MLflow's server, from the same image. Where it is, and what it would want to be told, reaches the pods by a Secret.

MLFLOW: Object = {
    "kind": "List",
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "mlflow", "labels": {"app": "mlflow"}},
            "spec": {
                "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 0, "fsGroup": 0},
                "containers": [
                    {
                        "name": "mlflow",
                        "image": "",
                        "command": ["mlflow", "server", "--host=0.0.0.0", "--port=5000", "--workers=1"],
                        "args": [
                            "--backend-store-uri=sqlite:////data/mlflow.db",
                            "--artifacts-destination=/data/artifacts",
                            "--allowed-hosts=*",
                        ],
                        "ports": [{"containerPort": 5000}],
                        "readinessProbe": {"httpGet": {"path": "/health", "port": 5000}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }
                ],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mlflow"},
            "spec": {"selector": {"app": "mlflow"}, "ports": [{"port": 5000}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tracking"},
            "stringData": {"MLFLOW_TRACKING_URI": "http://mlflow:5000"},
        },
    ],
}
# In the server's pod, by MLflow's own client.
ASK = """
import json, mlflow
mlflow.set_tracking_uri("http://localhost:5000")
client = mlflow.MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("e2e").experiment_id])
model = mlflow.pytorch.load_model(f"runs:/{run.info.run_id}/model") if run.info.status == "FINISHED" else None
losses = client.get_metric_history(run.info.run_id, "train_loss")
print(json.dumps({
    "status": run.info.status, "run": run.data.tags["torchtally.run"], "attempt": run.data.tags["attempt"],
    "proof": run.data.tags.get("torchtally.proof"), "metrics": run.data.metrics, "params": run.data.params,
    "steps": sorted({each.step for each in losses}), "loads": model is not None,
    "artifacts": [each.path for each in client.list_artifacts(run.info.run_id)],
}))
"""


def test_mlflow_has_the_record_of_a_run_that_was_started_again(
    operator: None, tasks_image: str, namespace: Namespace
) -> None:
    MLFLOW["items"][0]["spec"]["containers"][0]["image"] = tasks_image
    namespace.apply(MLFLOW)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/mlflow", "--timeout=300s")

    def asked() -> dict[str, Any]:
        return json.loads(namespace.kubectl("exec", "mlflow", "--", "python", "-c", ASK).splitlines()[-1])

    options = ("--epochs", "3", "--batch-size", "25", "--save-seconds", "1", "--mlflow", "e2e")
    task = Task(("run", "mnist-cnn", *options), "mnist", at_least=0)
    install(namespace, task, tasks_image, "--set-json", 'envFrom=[{"secretRef": {"name": "tracking"}}]')
    kill(MASTER, MID_EPOCH)(namespace)
    said = finish(namespace, task)
    found = asked()
    assert (found["status"], found["attempt"]) == ("FINISHED", "1")
    assert found["run"] in said
    assert found["proof"] == "every sample as the contract says"
    assert found["steps"] == list(range(100, 1801, 100))
    assert {"test_loss", "test_accuracy", "system/cpu_utilization_percentage"} <= found["metrics"].keys()
    assert found["params"]["batch_size"] == "25"
    assert found["loads"]
    assert "proof.json" in found["artifacts"]
    assert "MLflow" not in said  # it was never away
