"""What a platform puts beside a training: containers, volumes, names, other objects. The job ends all the same."""

import json
import os
import re

import pytest
from cluster import CHART, KIND_VALUES, Namespace, Object, data_values, image_values, run, verify, wait_for

SECURE = {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
SCRATCH = [{"name": "scratch", "mountPath": "/scratch"}]

PROVED = re.compile(r'^torchtally_proofs_total{holds="true",phase="train"} [1-6]\.0$', re.MULTILINE)


def metrics(namespace: Namespace) -> str:
    """What the master serves to Prometheus, by way of the API server; nothing where it serves nothing."""
    pod = f"/api/v1/namespaces/{namespace.name}/pods/demo-master-0:9090"
    return run("kubectl", "get", "--raw", f"{pod}/proxy/metrics", check=False).stdout


def succeeded(namespace: Namespace) -> dict[str, Object] | None:
    """The pods, once they all are."""
    pods = namespace.list("pod")
    return pods if all(pod["status"]["phase"] == "Succeeded" for pod in pods.values()) else None


@pytest.mark.nightly
def test_a_job_ends_with_its_training_whatever_stands_beside_it(operator: None, namespace: Namespace) -> None:
    image = os.environ["E2E_IMAGE"]
    values = {
        "args": ["--epochs", "6"],
        "workers": 1,
        "initContainers": [
            {"name": "first", "image": image, "command": ["sh", "-c", "id -u > /scratch/by"], "volumeMounts": SCRATCH}
        ],
        "sidecars": [
            {
                "name": "beside",
                "image": image,
                "command": ["tini", "--", "sh", "-c", "cat /scratch/by; sleep 3600"],
                "volumeMounts": SCRATCH,
                "securityContext": SECURE,
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volumeMounts": SCRATCH,
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "worker": {"env": [{"name": "WHO", "value": "worker"}], "podLabels": {"who": "worker"}},
        "podDisruptionBudget": {"enabled": True},
        "metrics": {"enabled": True, "from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},  # such as the API server
        "serviceAccount": {"name": "trainers"},
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-more"},
                "data": {"a": "b"},
            }
        ],
    }
    options = [*KIND_VALUES, *data_values(), *image_values()]
    command = ["helm", "--namespace", namespace.name, "install", "demo", str(CHART), *options, "--values=-"]
    run(*command, text=json.dumps(values))
    wait_for("metrics of an epoch that was proved", lambda: PROVED.search(metrics(namespace)))
    namespace.wait_for_job("demo", "Succeeded")
    assert {pod: numbers[1:3] for pod, numbers in verify(namespace)["train", 1].items()} == {
        "demo-master-0": [30000, 30000],
        "demo-worker-0": [30000, 30000],
    }
    pods = wait_for("both pods to have ended", lambda: succeeded(namespace))  # the job has when its master has
    for pod in pods.values():
        assert pod["spec"]["serviceAccountName"] == "trainers"
        beside = namespace.kubectl("logs", pod["metadata"]["name"], "--container=beside")
        assert beside == "1000\n"
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2
    assert [name for name, pod in pods.items() if pod["metadata"]["labels"].get("who")] == ["demo-worker-0"]
    assert namespace.list("configmap")["demo-more"]["data"] == {"a": "b"}
    assert namespace.list("networkpolicy").keys() == {"demo"}
    assert namespace.list("poddisruptionbudget")["demo"]["spec"]["minAvailable"] == 2
