"""What is sent in server dry runs."""

from typing import Any

from torchtally.cluster.job_kinds import ClusterJob, PyTorchJob

_NAME = "torchtally-check"
_IMAGE = "ghcr.io/torchtally/torchtally:check"  # never pulled
_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SMALL = {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}}


def pod(*, plain_init: bool) -> dict[str, Any]:
    """A pod like those of the chart, perhaps with an init container without a securityContext, as the operator's is."""
    metadata = {"name": _NAME}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec("pytorch", plain_init=plain_init)}


def job(kind: type[ClusterJob]) -> dict[str, Any]:
    """A small job."""
    if kind is PyTorchJob:
        master = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": _spec(kind.container)}}
        spec: dict[str, Any] = {"nprocPerNode": "1", "pytorchReplicaSpecs": {"Master": master}}
    else:
        spec = {"runtimeRef": {"name": _NAME}, "trainer": {"numNodes": 1}}
    about = {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": {"name": _NAME}}
    return {**about, "spec": spec}


def _spec(container: str, *, plain_init: bool = False) -> dict[str, Any]:
    first = [{"name": "init-pytorch", "image": "alpine:3.10", "resources": _SMALL}] if plain_init else []
    own = {"name": container, "image": _IMAGE, "resources": _SMALL, "securityContext": _RESTRICTED}
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"securityContext": security, "restartPolicy": "Never", "initContainers": first, "containers": [own]}
