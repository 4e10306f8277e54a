"""What the operator gives a pod is what run_local gives it, variable by variable."""

import json
import os
from pathlib import Path

import pytest
import yaml
from cluster import (
    CHART,
    CONTAINER,
    KIND_VALUES,
    Namespace,
    Object,
    image_values,
    pytorchjob,
    replica,
    run,
    wait_for,
)

from torchtally.local import environment, manifest

# The master stays: workers that start later look for its name.
PRINT = """
import json, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print(json.dumps(dict(os.environ)), flush=True)
signal.pause()
"""
COMMAND = ["python", "-c", PRINT]
OWN = [
    {"name": "GREETING", "value": "hello from $(POD_NAME), $$(LITERAL), $(UNKNOWN)"},
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "AGAIN", "value": "$(GREETING) and $(POD_NAME)"},
    {
        "name": "INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}},
    },
    {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
]


def chart(*options: str) -> Object:
    command = ["--set", "task=", "--set-json", f"args=[],command={json.dumps(COMMAND)}"]
    rendered = run("helm", "template", "demo", str(CHART), *KIND_VALUES, *image_values(), *command, *options).stdout
    (job,) = [document for document in yaml.safe_load_all(rendered) if document["kind"] == "PyTorchJob"]
    for each in job["spec"]["pytorchReplicaSpecs"].values():
        pod = each["template"]["spec"]
        del pod["serviceAccountName"], pod["volumes"], pod["containers"][0]["volumeMounts"]
    return job


def by_hand(replicas: dict[str, int], port: int | None = None, **spec: object) -> Object:
    container: Object = {"name": CONTAINER, "image": os.environ["E2E_IMAGE"], "command": COMMAND}
    if port:
        container["ports"] = [{"name": "pytorchjob-port", "containerPort": port}]
    pod = {"containers": [container]}
    return pytorchjob({kind: replica(pod, count) for kind, count in replicas.items()}, **spec)


ELASTIC = {
    "minReplicas": 1,
    "maxReplicas": 3,
    "maxRestarts": 5,
    "rdzvBackend": "c10d",
    "rdzvId": "run",
    "rdzvConf": [{"key": "timeout", "value": "60"}, {"key": "join_timeout", "value": "90"}],
}

JOBS = {
    "the-chart": lambda: chart(),
    "two-processes-and-own-variables": lambda: chart("--set", "nprocPerNode=2", "--set-json", f"env={json.dumps(OWN)}"),
    "no-nprocPerNode": lambda: by_hand({"Master": 1, "Worker": 1}),
    "another-port": lambda: by_hand({"Master": 1, "Worker": 1}, port=29500, nprocPerNode="4"),
    "elastic": lambda: by_hand({"Worker": 2}, elasticPolicy=ELASTIC),
    "elastic-by-default": lambda: by_hand({"Worker": 2}, elasticPolicy={"nProcPerNode": 2}),
}


NIGHTLY = {"no-nprocPerNode", "another-port", "elastic-by-default"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in NIGHTLY else []) for name in JOBS]
)
def test_equals_what_run_local_gives(operator: None, namespace: Namespace, tmp_path: Path, name: str) -> None:
    document = JOBS[name]()
    namespace.apply(document)
    namespace.apply(bare_pod(document))

    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    job = manifest.load(str(file)).job
    # The image's and Kubernetes' own variables, as a pod without a job has them.
    bare = variables(namespace, "bare")
    for pod in job.pods:
        expected = bare | environment.pod_environment(job, pod) | {"HOSTNAME": pod.name}
        assert variables(namespace, pod.name) == expected


def bare_pod(job: Object) -> Object:
    spec = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    container = {key: value for key, value in spec["containers"][0].items() if key not in ("env", "envFrom")}
    spec = spec | {"containers": [container], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": spec}


def variables(namespace: Namespace, pod: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(wait_for(f"{pod} to print", lambda: namespace.log(pod)))
    return found
