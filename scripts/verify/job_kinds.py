"""The kinds of job in a cluster, PyTorchJob and TrainJob: their objects, states and names of pods."""

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

from kubernetes import client
from kubernetes.client.exceptions import ApiException

TIMEOUT = (10, 60)  # seconds to connect, and between two reads


class ClusterError(Exception):
    """The cluster, or the job in it, cannot be read."""


class ClusterJob(ABC):
    """A job as the API server gave it."""

    kind: ClassVar[str]
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    container: ClassVar[str]
    controller: ClassVar[str]

    def __init__(self, found: dict[str, Any]) -> None:
        self.name = str(found["metadata"]["name"])
        self.namespace = str(found["metadata"]["namespace"])
        self.created = str(found["metadata"].get("creationTimestamp", ""))
        self.spec: dict[str, Any] = found["spec"]
        self._status: dict[str, Any] = found.get("status", {})

    @abstractmethod
    def pods(self, core: client.CoreV1Api) -> list[str]:
        """Names of the pods that it has or should have. Raises ClusterError and urllib3's HTTPError."""

    @property
    def why_gone(self) -> str:
        """Why a pod is gone after the job's end, in parentheses."""
        return ""

    @property
    def state(self) -> str:
        """The type of the last condition that holds, as kubectl's column shows it."""
        conditions = self._status.get("conditions") or []
        return next((each["type"] for each in reversed(conditions) if each["status"] == "True"), "no status yet")

    @property
    def ended(self) -> bool:
        return self.state in ("Succeeded", "Complete", "Failed")

    @property
    def why_failed(self) -> str:
        messages = [each.get("message", "") for each in self._status["conditions"] if each["type"] == "Failed"]
        return f": {messages[-1]}" if messages and messages[-1] else ""


class PyTorchJob(ClusterJob):
    kind, group, version, plural = "PyTorchJob", "kubeflow.org", "v1", "pytorchjobs"
    container = "pytorch"  # the operator's webhook insists on this name
    controller = "the training operator"

    def pods(self, core: client.CoreV1Api) -> list[str]:
        """By their names, which are known: the RBAC of `helm test` allows to get each, not to list them."""
        return [
            f"{self.name}-{kind.lower()}-{index}"
            for kind, spec in sorted(self.spec.get("pytorchReplicaSpecs", {}).items())
            for index in range(spec.get("replicas", 1))
        ]

    @property
    def why_gone(self) -> str:
        policy = self.spec.get("runPolicy", {}).get("cleanPodPolicy", "None")
        return f" (the job's cleanPodPolicy is {policy}; None keeps pods)"


class TrainJob(ClusterJob):
    kind, group, version, plural = "TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs"
    container = "node"
    controller = "Kubeflow Trainer"

    def pods(self, core: client.CoreV1Api) -> list[str]:
        """The last that was made for each node; where there is none, the start of its name."""
        try:
            selector = f"jobset.sigs.k8s.io/jobset-name={self.name},jobset.sigs.k8s.io/replicatedjob-name=node"
            found: Any = core.list_namespaced_pod(self.namespace, label_selector=selector, _request_timeout=TIMEOUT)
        except ApiException as error:
            raise ClusterError(
                refused(error, f"the pods of {self.kind} {self.name}", self.namespace, "pods", "list")
            ) from error
        nodes = {
            index: f"{self.name}-node-0-{index}" for index in range(self.spec.get("trainer", {}).get("numNodes", 1))
        }
        for pod in sorted(found.items, key=lambda each: each.metadata.creation_timestamp):
            nodes[int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])] = pod.metadata.name
        return [nodes[index] for index in sorted(nodes)]

    @property
    def state(self) -> str:
        """A TrainJob that runs has no condition."""
        state = super().state
        active = any(each.get("active") for each in self._status.get("jobsStatus") or [])
        return "Running" if active and state == "no status yet" else state


def find(api: client.CustomObjectsApi, name: str, namespace: str) -> ClusterJob:
    """The job of this name, of whichever kind. Raises ClusterError and urllib3's HTTPError."""
    reasons: list[tuple[type[ClusterJob], ApiException]] = []
    for kind in (PyTorchJob, TrainJob):
        try:
            found = api.get_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, name, _request_timeout=TIMEOUT
            )
            return kind(cast(dict[str, Any], found))
        except ApiException as error:
            reasons.append((kind, error))
    raise ClusterError(_why_none(reasons, name, namespace))


def _why_none(reasons: list[tuple[type[ClusterJob], ApiException]], name: str, namespace: str) -> str:
    if known := [kind.kind for kind, error in reasons if error.status == 404 and _is_known(error, name)]:
        return f"no {' or '.join(known)} {name} in namespace {namespace} (ttlSecondsAfterFinished deletes old ones)"
    for kind, error in reasons:
        if error.status != 404:
            return refused(error, f"{kind.kind} {name}", namespace, kind.plural)
    kinds = " or ".join(f"{kind.kind}s" for kind, _ in reasons)
    return f"this cluster does not know {kinds}: is {' or '.join(kind.controller for kind, _ in reasons)} installed?"


def _is_known(error: ApiException, name: str) -> bool:
    """Whether the object is missing, not the resource, which the API server answers in plain text."""
    try:
        return bool(json.loads(error.body or "")["details"]["name"] == name)
    except (ValueError, KeyError, TypeError):
        return False


def refused(error: ApiException, what: str, namespace: str, resources: str, verb: str = "get") -> str:
    if error.status == 403:
        must = f"a role must allow {verb} on {resources}"
        return f"forbidden to read {what} in namespace {namespace}: {must} ({message(error)})"
    return f"cannot read {what} in namespace {namespace}: {error.status} {message(error)}"


def message(error: ApiException) -> str:
    """The API server's own sentence."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
