"""What of the manifest cannot be honoured here: said once, so that a run here is not taken for more than it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local import environment, machine
from local.job import Job, Pod
from local.webhook import CONTAINER

# Fields that only a cluster has a use for, and that change nothing in what a pod computes.
_IMMATERIAL = {
    "automountServiceAccountToken",
    "dnsPolicy",
    "enableServiceLinks",
    "imagePullSecrets",
    "priorityClassName",
    "restartPolicy",
    "serviceAccountName",
    "terminationMessagePath",
    "terminationMessagePolicy",
}


@dataclass(frozen=True, kw_only=True)
class Honoured:
    """The fields that an engine honours, beside what every engine does."""

    pod: frozenset[str] = frozenset()
    container: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()
    addresses: bool = False  # whether the pods' names resolve
    image: bool = False


def left_out(job: Job, honoured: Honoured, gpus: Sequence[str]) -> list[str]:
    """Each thing once, in the words of the manifest."""
    items: list[str] = []
    if "ttlSecondsAfterFinished" in job.run_policy:
        items.append("ttlSecondsAfterFinished")
    if "schedulingPolicy" in job.run_policy:
        items.append("schedulingPolicy")
    if job.run_policy.get("managedBy", "").startswith("kueue"):
        items.append(f"managedBy {job.run_policy['managedBy']}")
    if "metrics" in (job.elastic or {}):
        items.append("elasticPolicy.metrics")
    queue = "kueue.x-k8s.io/queue-name"
    if queue in job.metadata.get("labels", {}):
        items.append(f"label {queue}")
    for pod in (pod for pod in job.pods if pod.index == 0):  # the others of its kind are made of the same template
        items += _of_pod(pod, honoured)
        items += _of_limits(pod, honoured)
        if not honoured.addresses:
            items += _names_in_text(job, pod)
    asked = sum(int(pod.limit(machine.NVIDIA_GPU)) for pod in job.pods)
    if asked > len(gpus):
        here = f"{len(gpus)} here" if gpus else "none here"
        items.insert(0, f"{asked} {machine.NVIDIA_GPU} ({here})")
    return list(dict.fromkeys(items + environment.unresolved(job)))


def _of_pod(pod: Pod, honoured: Honoured) -> Iterator[str]:
    known = {"containers", "terminationGracePeriodSeconds", "volumes"} | _IMMATERIAL | honoured.pod
    container_known = {"name", "image", "command", "args", "env", "envFrom", "ports", "workingDir", "resources"}
    container_known |= {"volumeMounts", "imagePullPolicy"} | _IMMATERIAL | honoured.container
    if not honoured.image:
        yield f"image {pod.container['image']}"
    yield from (f"annotation {name}" for name in pod.annotations)
    # One that does nothing is there to have its image pulled.
    if all(each.get("command") == ["true"] for each in pod.spec.get("initContainers") or []):
        known.add("initContainers")
    yield from (field for field in pod.spec if field not in known)
    yield from (f"container {other['name']}" for other in pod.spec["containers"] if other["name"] != CONTAINER)
    yield from (field for field in pod.container if field not in container_known)
    yield from (f"volume {volume['name']}" for volume in pod.spec.get("volumes", []) if not _mounts(volume, honoured))
    yield from (f"subPath of {mount['name']}" for mount in pod.container.get("volumeMounts", []) if "subPath" in mount)


def _mounts(volume: Mapping[str, Any], honoured: Honoured) -> bool:
    return "volumes" in honoured.pod and not {"emptyDir", "hostPath", "persistentVolumeClaim"}.isdisjoint(volume)


def _of_limits(pod: Pod, honoured: Honoured) -> Iterator[str]:
    for name, amount in pod.limits.items():
        if name != machine.NVIDIA_GPU and name not in honoured.limits:
            yield f"limit {name} {amount}"


def _names_in_text(job: Job, pod: Pod) -> Iterator[str]:
    """A pod's name written by hand does not resolve here; what the operator gives, and $(MASTER_ADDR), does."""
    container = pod.container
    values = [entry.get("value", "") for entry in container.get("env", [])]
    text = "\n".join([*container.get("command", []), *container.get("args", []), *values])
    yield from (f"the name {other.name} as an address" for other in job.pods if other.name in text)
