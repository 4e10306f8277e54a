"""The kinds of job in a cluster, PyTorchJob and TrainJob: their objects, states and names of pods."""

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from torchtally.errors import Refused

TIMEOUT = (10, 60)  # seconds to connect, and between two reads
_QUEUE = "kueue.x-k8s.io/queue-name"  # Kueue suspends the jobs with this label until it admits them


class ClusterError(Refused):
    """The cluster, or the job in it, cannot be read."""


class NoJob(ClusterError):
    """No job has this name."""


class Unreachable(ClusterError):
    """The API server does not answer, or not now: trying again can help."""

    code = 7


class ClusterJob(ABC):
    """A job as the API server gave it."""

    kind: ClassVar[str]
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    container: str
    controller: ClassVar[str]

    def __init__(self, found: dict[str, Any]) -> None:
        self.name = str(found["metadata"]["name"])
        self.namespace = str(found["metadata"]["namespace"])
        self.uid = str(found["metadata"].get("uid", ""))
        self.spec: dict[str, Any] = found["spec"]
        self._status: dict[str, Any] = found.get("status", {})
        self._in_queue = _QUEUE in (found["metadata"].get("labels") or {})

    @abstractmethod
    def pods(self, core: client.CoreV1Api) -> list[str]:
        """Names of the pods that it has or should have. Raises ClusterError and urllib3's HTTPError."""

    def listed(self, core: client.CoreV1Api) -> list[Any]:
        """The pods that exist, the newest last. Raises ClusterError and urllib3's HTTPError."""
        try:
            options: dict[str, Any] = {"label_selector": self.selector, "_request_timeout": TIMEOUT}
            found: Any = core.list_namespaced_pod(self.namespace, **options)
        except ApiException as error:
            raise refused(error, f"the pods of {self.kind} {self.name}", self.namespace, "pods", "list") from error
        return sorted(found.items, key=lambda each: each.metadata.creation_timestamp)

    @property
    @abstractmethod
    def selector(self) -> str:
        """The labels of its pods."""

    @property
    @abstractmethod
    def suspended(self) -> bool: ...

    @property
    def has_leader(self) -> bool:
        """Whether the first of its pods has rank 0."""
        return True

    @property
    def why_gone(self) -> str:
        """Why a pod is gone after the job's end, in parentheses."""
        return ""

    @property
    def progress(self) -> str:
        """What a job that has not ended does, in a word."""
        if self.suspended:
            return "queued" if self._in_queue else "suspended"
        return self.state.lower() if self.state in ("Running", "Restarting") else "starting"

    @property
    def sentence(self) -> str:
        if self.state == "Failed":
            return f"{self.kind} {self.name} has failed{self.why_failed.removesuffix('.')}"
        return f"{self.kind} {self.name} is {self.progress}"

    @property
    def deletion(self) -> str:
        return f"{self.kind} {self.name} in namespace {self.namespace} was deleted while it was {self.progress}"

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
    def has_leader(self) -> bool:
        return "Master" in self.spec.get("pytorchReplicaSpecs", {})

    @property
    def selector(self) -> str:
        return f"training.kubeflow.org/job-name={self.name}"

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("runPolicy", {}).get("suspend"))

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
        nodes = {
            index: f"{self.name}-node-0-{index}" for index in range(self.spec.get("trainer", {}).get("numNodes", 1))
        }
        for pod in self.listed(core):
            nodes[int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])] = pod.metadata.name
        return [nodes[index] for index in sorted(nodes)]

    @property
    def selector(self) -> str:
        return f"jobset.sigs.k8s.io/jobset-name={self.name},jobset.sigs.k8s.io/replicatedjob-name=node"

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("suspend"))

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
    raise _why_none(reasons, name, namespace)


def find_all(api: client.CustomObjectsApi, namespace: str, *, required: bool) -> list[ClusterJob]:
    """All jobs of a namespace. Raises urllib3's HTTPError, and ClusterError, also if `required` kinds are unknown."""
    jobs: list[ClusterJob] = []
    unknown: list[ApiException] = []
    for kind in (PyTorchJob, TrainJob):
        try:
            found: Any = api.list_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, _request_timeout=TIMEOUT
            )
            jobs += map(kind, found["items"])
        except ApiException as error:
            if error.status != 404:
                raise refused(error, f"the {kind.kind}s", namespace, _resource(kind), "list") from error
            unknown.append(error)
    if required and len(unknown) == 2:
        raise _why_none([(PyTorchJob, unknown[0]), (TrainJob, unknown[1])], "", namespace)
    return jobs


def _why_none(reasons: list[tuple[type[ClusterJob], ApiException]], name: str, namespace: str) -> ClusterError:
    for kind, error in reasons:
        if _is_passing(error):  # the job can be of this kind
            return refused(error, f"{kind.kind} {name}", namespace, _resource(kind))
    if known := [kind.kind for kind, error in reasons if error.status == 404 and _is_known(error, name)]:
        which = f"no {' or '.join(known)} {name} in namespace {namespace}"
        return NoJob(f"{which} (ttlSecondsAfterFinished deletes old ones)")
    if others := [(kind, error) for kind, error in reasons if error.status != 404]:
        kinds = " or ".join(kind.kind for kind, _ in others)
        return refused(others[0][1], f"{kinds} {name}", namespace, " or ".join(_resource(kind) for kind, _ in others))
    kinds = " or ".join(f"{kind.kind}s" for kind, _ in reasons)
    controllers = " or ".join(kind.controller for kind, _ in reasons)
    return ClusterError(f"this cluster does not know {kinds}: is {controllers} installed?")


def _resource(kind: type[ClusterJob]) -> str:
    return f"{kind.plural}.{kind.group}"


def _is_known(error: ApiException, name: str) -> bool:
    """Whether the object is missing, not the resource, which the API server answers in plain text."""
    try:
        return bool(json.loads(error.body or "")["details"]["name"] == name)
    except (ValueError, KeyError, TypeError):
        return False


def _is_passing(error: ApiException) -> bool:
    return error.status == 429 or (error.status or 0) >= 500


def refused(error: ApiException, what: str, namespace: str, resource: str, verb: str = "get") -> ClusterError:
    """What to tell of a request that the API server refused."""
    if error.status == 403:
        must = f"a role must allow {verb} on {resource}"
        return ClusterError(f"forbidden to read {what} in namespace {namespace}: {must} ({message(error)})")
    kind = Unreachable if _is_passing(error) else ClusterError
    return kind(f"cannot read {what} in namespace {namespace}: {error.status} {message(error)}")


def message(error: ApiException) -> str:
    """The API server's own sentence."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
