"""Where the pods of a job listen, and a stranger's pod, which the NetworkPolicy keeps from them."""

import json
import os
from typing import Any

import pytest
from cluster import KIND_VALUES, Namespace, Object, data_values, run, wait_for
from faults import MASTER

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)"
STORE, METRICS = 23456, 9090


def reaches(namespace: Namespace, pod: str, address: str, port: int) -> bool:
    command = ["kubectl", "--namespace", namespace.name, "exec", pod, "--", "python", "-c", CONNECT, address, str(port)]
    return run(*command, check=False).returncode == 0


def address(namespace: Namespace, pod: str) -> str:
    return namespace.kubectl("get", "pod", pod, "--output=jsonpath={.status.podIP}")


def bystander(name: str, command: list[str], labels: dict[str, str]) -> Object:
    image = {"name": "main", "image": os.environ["E2E_IMAGE"], "command": ["tini", "--", *command]}
    spec = {"containers": [image], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def denied(pod: str) -> Object:
    spec: dict[str, Any] = {"podSelector": {"matchLabels": {"name": pod}}, "policyTypes": ["Ingress"]}
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": {"name": pod}, "spec": spec}


def test_a_stranger_is_kept_from_the_pods_and_prometheus_from_all_but_the_metrics(
    operator: None, namespace: Namespace
) -> None:
    namespace.apply(denied("denied"))
    for name, command, labels in (
        ("denied", ["python", "-m", "http.server", "8000"], {"name": "denied"}),
        ("open", ["python", "-m", "http.server", "8000"], {}),
        ("stranger", ["sleep", "3600"], {}),
        ("prometheus", ["sleep", "3600"], {"app.kubernetes.io/name": "prometheus"}),
    ):
        namespace.apply(bystander(name, command, labels))
    endless = ["--set-json", f"args={json.dumps(['--epochs', '100000', '--batch-size', '1000'])}"]
    namespace.install(*KIND_VALUES, *data_values(), "--set", "workers=1,metrics.enabled=true", *endless)
    wait_for("the metrics", lambda: reaches(namespace, MASTER, "127.0.0.1", METRICS))
    master = address(namespace, MASTER)
    assert reaches(namespace, MASTER, master, METRICS)
    assert reaches(namespace, "demo-worker-0", master, STORE)
    assert not reaches(namespace, MASTER, "127.0.0.1", STORE)

    wait_for("an open port", lambda: reaches(namespace, "stranger", address(namespace, "open"), 8000))
    wait_for("another one", lambda: reaches(namespace, "denied", "127.0.0.1", 8000))
    if reaches(namespace, "stranger", address(namespace, "denied"), 8000):
        pytest.skip("the network of this cluster enforces no NetworkPolicy")
    assert reaches(namespace, "prometheus", master, METRICS)
    assert not reaches(namespace, "prometheus", master, STORE)
    assert not reaches(namespace, "stranger", master, METRICS)
    assert not reaches(namespace, "stranger", master, STORE)
