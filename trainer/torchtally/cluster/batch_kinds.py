"""The kinds of job of others' trainings: a JobSet, and a Job. Their training container is the one with the observer."""

from collections.abc import Iterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from torchtally.cluster.job_kinds import TIMEOUT, ClusterJob
from torchtally.cluster.observer_volume import VOLUME, carries

_PLACE = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "batch.kubernetes.io/job-completion-index",
)


class BatchJob(ClusterJob):
    """What JobSet and Job have in common."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(found)
        owners = found["metadata"].get("ownerReferences") or []
        self.owned = any(owner.get("controller") for owner in owners)
        pods = list(self._specs())
        self.carries = any(volume["name"] == VOLUME for pod in pods for volume in pod.get("volumes") or [])
        containers = [each for pod in pods for each in pod["containers"]]
        mounted = [
            each["name"] for each in containers if VOLUME in (mount["name"] for mount in each.get("volumeMounts") or [])
        ]
        self.container = (mounted or [each["name"] for each in containers])[0]

    def _specs(self) -> Iterator[dict[str, Any]]:
        """The specs of its pods."""
        raise NotImplementedError

    def pods(self, core: client.CoreV1Api) -> list[str]:
        """The last that was made for each place in the job; of pods that carry the observer, if any does."""
        places: dict[tuple[str, ...], str] = {}
        for pod in self.listed(core):
            if self.carries and not carries(pod):  # as a launcher beside the workers
                continue
            own = tuple(pod.metadata.labels[name] for name in _PLACE if name in pod.metadata.labels)
            places[own or (pod.metadata.name,)] = pod.metadata.name
        return [places[place] for place in sorted(places)]

    @property
    def has_leader(self) -> bool:
        return False

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("suspend"))

    @property
    def _active(self) -> bool:
        return bool(self._status.get("active"))

    @property
    def state(self) -> str:
        """The condition that ends it; while it runs, it has none."""
        state = super().state
        if state == "Completed":
            return "Complete"
        return "Running" if self._active and state == "no status yet" else state


class JobSet(BatchJob):
    kind, group, version, plural = "JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets"
    controller = "JobSet's controller"

    def _specs(self) -> Iterator[dict[str, Any]]:
        for job in self.spec.get("replicatedJobs") or []:
            yield job["template"]["spec"]["template"]["spec"]

    @property
    def selector(self) -> str:
        return f"jobset.sigs.k8s.io/jobset-name={self.name}"

    @property
    def _active(self) -> bool:
        return any(each.get("active") for each in self._status.get("replicatedJobsStatus") or [])


class Job(BatchJob):
    kind, group, version, plural = "Job", "batch", "v1", "jobs"
    controller = "Kubernetes"

    def _specs(self) -> Iterator[dict[str, Any]]:
        yield self.spec["template"]["spec"]

    @property
    def selector(self) -> str:
        return f"batch.kubernetes.io/job-name={self.name}"


def find(api: client.CustomObjectsApi, name: str, namespace: str) -> BatchJob | None:
    """The JobSet or Job of this name; None if there is none, or it may not be read. Raises urllib3's HTTPError."""
    for kind in (JobSet, Job):
        try:
            found: Any = api.get_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, name, _request_timeout=TIMEOUT
            )
            return kind(found)
        except ApiException:
            pass
    return None


def find_all(api: client.CustomObjectsApi, namespace: str) -> list[BatchJob]:
    """Those that carry the observer, and belong to no other job. Raises urllib3's HTTPError."""
    jobs: list[BatchJob] = []
    for kind in (JobSet, Job):
        try:
            found: Any = api.list_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, _request_timeout=TIMEOUT
            )
        except ApiException:  # of a kind that the cluster lacks, or that is not for this user
            continue
        jobs += [job for job in map(kind, found["items"]) if job.carries and not job.owned]
    return jobs
