"""A Prometheus in the namespace of a test, with its operator or without it, and what it answers."""

import json
import urllib.parse
from typing import Any

import yaml
from cluster import Namespace, Object, run

IMAGE = "quay.io/prometheus/prometheus:v3.9.1"
PORT = 9090
LABELS = {"app.kubernetes.io/name": "prometheus"}  # as Prometheus' own chart and its operator set it
OF_THE_OPERATOR = "prometheus-demo-0"

_ANNOTATION = "__meta_kubernetes_pod_annotation_prometheus_io"
# The job kubernetes-pods of Prometheus' chart.
_RELABELLING = [
    {"source_labels": [f"{_ANNOTATION}_scrape"], "action": "keep", "regex": True},
    {
        "source_labels": [f"{_ANNOTATION}_port", "__meta_kubernetes_pod_ip"],
        "regex": r"(\d+);((([0-9]+?)(\.|$)){4})",
        "replacement": "$2:$1",
        "target_label": "__address__",
    },
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {
        "source_labels": ["__meta_kubernetes_pod_phase"],
        "regex": "Pending|Succeeded|Failed|Completed",
        "action": "drop",
    },
]


def allow_to_find_pods(namespace: Namespace) -> None:
    namespace.kubectl("create", "serviceaccount", "prometheus")
    namespace.kubectl("create", "role", "prometheus", "--verb=get,list,watch", "--resource=pods,services,endpoints")
    namespace.kubectl(
        "create", "rolebinding", "prometheus", "--role=prometheus", f"--serviceaccount={namespace.name}:prometheus"
    )


def of_annotations(namespace: Namespace, name: str, labels: dict[str, str]) -> None:
    """One without the operator, as the pod `name`. Scrapes the pods that have the annotations."""
    job = {
        "job_name": "kubernetes-pods",
        "honor_labels": True,
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace.name]}}],
        "relabel_configs": _RELABELLING,
    }
    config = yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
    namespace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"prometheus.yml": config}}
    )
    container = {
        "name": "prometheus",
        "image": IMAGE,
        "args": ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/prometheus"],
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/prometheus"}],
    }
    spec = {
        "serviceAccountName": "prometheus",
        "containers": [container],
        "securityContext": {"runAsUser": 65534, "runAsNonRoot": True, "fsGroup": 65534},
        "volumes": [{"name": "config", "configMap": {"name": name}}, {"name": "data", "emptyDir": {}}],
    }
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})


def of_the_operator(namespace: Namespace, selected: Object) -> None:
    """One as the pod OF_THE_OPERATOR, with the PodMonitors and rules of the namespace that have these labels."""
    spec: dict[str, Any] = {
        "image": IMAGE,
        "scrapeInterval": "1s",
        "serviceAccountName": "prometheus",
        "evaluationInterval": "1s",
        "podMonitorSelector": {"matchLabels": selected},
        "ruleSelector": {"matchLabels": selected},
    }
    namespace.apply(
        {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "demo"}, "spec": spec}
    )


def _ask(namespace: Namespace, pod: str, what: str, **parameters: str) -> Any:
    """By way of the API server; None until it answers."""
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}:{PORT}/proxy/api/v1/{what}"
    answer = run("kubectl", "get", "--raw", f"{path}?{urllib.parse.urlencode(parameters)}", check=False).stdout
    return json.loads(answer)["data"] if answer else None


def query(namespace: Namespace, pod: str, expression: str) -> list[Object]:
    """The series that the expression has now."""
    found = _ask(namespace, pod, "query", query=expression)
    return found["result"] if found else []


def health(namespace: Namespace, pod: str) -> dict[str, str]:
    """That of each pod that it scrapes: `up`, `down`, or `unknown` before the first scrape."""
    found = _ask(namespace, pod, "targets", state="active") or {"activeTargets": []}
    return {each["labels"]["pod"]: each["health"] for each in found["activeTargets"]}


def rules(namespace: Namespace, pod: str) -> dict[str, str]:
    """The health of each of its rules: `ok`, `err`, or `unknown` before the first evaluation."""
    found = _ask(namespace, pod, "rules") or {"groups": []}
    return {rule["name"]: rule["health"] for group in found["groups"] for rule in group["rules"]}
