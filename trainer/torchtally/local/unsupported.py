"""The fields of a manifest that have no effect here. The runner lists them, so that nobody relies on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtally.inject import observer
from torchtally.local import environment, machine
from torchtally.local.job import LocalJob, Pod

# Fields that matter to a cluster alone and do not change what a pod computes.
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
class Support:
    """The fields that an engine honours, beside what every engine does."""

    pod: frozenset[str] = frozenset()
    container: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()
    image: bool = False


def found_in(job: LocalJob, support: Support, gpus: Sequence[str]) -> list[str]:
    """Each of them once, by its name in the manifest."""
    items: list[str] = []
    if "ttlSecondsAfterFinished" in job.run_policy:
        items.append("ttlSecondsAfterFinished")
    if "schedulingPolicy" in job.run_policy:
        items.append("schedulingPolicy")
    if job.run_policy.get("managedBy", "").startswith("kueue"):
        items.append(f"managedBy {job.run_policy['managedBy']}")
    if "metrics" in (job.elastic or {}):
        items.append("elasticPolicy.metrics")
    if environment.needs_server(policy := job.elastic or {}):
        where = ":".join(str(policy[key]) for key in ("rdzvHost", "rdzvPort") if key in policy)
        items.append(f"elasticPolicy.rdzvBackend {policy['rdzvBackend']}{where and f' at {where}'} (c10d in its place)")
    queue = "kueue.x-k8s.io/queue-name"
    if queue in job.metadata.get("labels", {}):
        items.append(f"label {queue}")
    for pod in (pod for pod in job.pods if pod.index == 0):  # the others of its type have the same template
        items += _of_pod(job, pod, support)
        items += _of_limits(pod, support)
    asked = sum(int(pod.limit(machine.NVIDIA_GPU)) for pod in job.pods)
    if asked > len(gpus):
        here = f"{len(gpus)} here" if gpus else "none here"
        items.insert(0, f"{asked} {machine.NVIDIA_GPU} ({here})")
    return list(dict.fromkeys(items + environment.unresolved(job)))


def _of_pod(job: LocalJob, pod: Pod, support: Support) -> Iterator[str]:
    known = {"containers", "terminationGracePeriodSeconds", "volumes"} | _IMMATERIAL | support.pod
    container_known = {"name", "image", "command", "args", "env", "envFrom", "ports", "workingDir", "resources"}
    container_known |= {"volumeMounts", "imagePullPolicy"} | _IMMATERIAL | support.container
    if not support.image:
        yield f"image {pod.container['image']}"
    yield from (f"annotation {name}" for name in pod.annotations)
    # An init container that does nothing is there to pull its image.
    if all(each.get("command") == ["true"] for each in pod.spec.get("initContainers") or []):
        known.add("initContainers")
    yield from (field for field in pod.spec if field not in known)
    yield from (f"container {other['name']}" for other in pod.spec["containers"] if other is not pod.container)
    yield from (field for field in pod.container if field not in container_known)
    yield from (
        f"volume {volume['name']}" for volume in pod.spec.get("volumes", []) if not _mounts(job, volume, support)
    )
    yield from (f"subPath of {mount['name']}" for mount in pod.container.get("volumeMounts", []) if "subPath" in mount)


def _mounts(job: LocalJob, volume: Mapping[str, Any], support: Support) -> bool:
    if volume["name"] == observer.NAME:  # a process finds its files in this checkout
        return True
    known = not {"emptyDir", "hostPath", "persistentVolumeClaim"}.isdisjoint(volume) or job.files(volume) is not None
    return known and "volumes" in support.pod


def _of_limits(pod: Pod, support: Support) -> Iterator[str]:
    for name, amount in pod.limits.items():
        if name != machine.NVIDIA_GPU and name not in support.limits:
            yield f"limit {name} {amount}"
