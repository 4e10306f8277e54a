"""Jobs, pods, and logs as the cluster has them."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TextIO

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from torchtally.cluster import batch_kinds, job_kinds, logs
from torchtally.cluster.job_kinds import TIMEOUT, ClusterJob, Unreachable
from torchtally.record.model import Life

Pod = Any  # a V1Pod, of which the client's types have each part as optional
_WARNINGS = 3  # that are shown


class Cluster:
    """A namespace of a cluster. All methods raise ClusterError."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self.settings, own = logs.connect(context)
        self.namespace = namespace or own
        self.api = client.ApiClient(self.settings)
        self.core = client.CoreV1Api(self.api)

    def jobs(self) -> list[ClusterJob]:
        with self.told("the jobs", "pytorchjobs.kubeflow.org or trainjobs.trainer.kubeflow.org", "list"):
            api = client.CustomObjectsApi(self.api)
            others = batch_kinds.find_all(api, self.namespace)
            found = job_kinds.find_all(api, self.namespace, required=not others)
            return sorted([*found, *others], key=lambda job: job.name)

    def job(self, name: str) -> ClusterJob:
        return logs.find(client.CustomObjectsApi(self.api), name, self.namespace)

    def pods(self, job: ClusterJob | None = None) -> dict[str, Pod]:
        """Those that exist, by name, of one job or of all."""
        selector: dict[str, Any] = {"label_selector": job.selector} if job else {}
        with self.told(f"the pods of {job.name}" if job else "the pods", "pods", "list"):
            found: Any = self.core.list_namespaced_pod(self.namespace, _request_timeout=TIMEOUT, **selector)
        return {pod.metadata.name: pod for pod in found.items}

    def warnings(self, job: ClusterJob, pods: Iterable[str]) -> list[str]:
        """The newest warnings of the cluster about the job and its pods; of a job that has ended, about its pods."""
        with self.told("the events", "events", "list"):
            found: Any = self.core.list_namespaced_event(
                self.namespace, field_selector="type=Warning", _request_timeout=TIMEOUT
            )
        names = {*pods} if job.ended else {job.name, *pods}  # the operator's are of restarts that do not come
        own = [each for each in found.items if each.involved_object.name in names]
        own.sort(key=lambda each: _moment(each.last_timestamp or each.event_time) or 0.0)
        told = [f"{each.involved_object.name}: {each.reason}: {each.message or ''}" for each in own]
        return [" ".join(text.split()) for text in dict.fromkeys(told)][-_WARNINGS:]

    @contextmanager
    def log(self, pod: str, job: ClusterJob, **options: Any) -> Iterator[TextIO]:
        """A log as it arrives. A pod that is gone, or has none, has an empty one."""
        stream: TextIO = io.StringIO()
        with self.told(f"the log of pod {pod}", "pods/log", "get"):
            try:
                stream = logs.stream(self.core, pod, job, **options)
            except ApiException as error:
                if error.status not in (400, 404):
                    raise
        with stream:
            yield stream

    @contextmanager
    def told(self, what: str, resource: str, verb: str) -> Iterator[None]:
        try:
            yield
        except ApiException as error:
            raise job_kinds.refused(error, what, self.namespace, resource, verb) from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"cannot reach the cluster at {self.settings.host}: {error}") from error


def lives(pod: Pod, container: str) -> Iterator[Life]:
    """What the status of a pod says of its container's starts: of the last two, as the cluster keeps no more."""
    conditions = {each.type: each for each in pod.status.conditions or [] if each.status == "True"}
    scheduled = conditions.get("PodScheduled")
    known = Life(
        created=_moment(pod.metadata.creation_timestamp),
        scheduled=_moment(scheduled.last_transition_time) if scheduled else None,
    )
    told = False
    for each in _containers(pod, container):
        for state in filter(None, (each.last_state, each.state)):
            for life in _life(state, known):
                yield life
                known, told = Life(), True
    if not told:
        yield known


def waits(pod: Pod) -> str | None:
    """Why a pod does not run, None if it does or has ended."""
    if pod.status.phase != "Pending":
        return None
    return ", ".join(logs.reasons(pod.status)) or "Pending"


def restarts(pod: Pod, container: str) -> int:
    return sum(each.restart_count for each in _containers(pod, container))


def started(pod: Pod, container: str) -> bool:
    """Whether the container runs, or has run."""
    states = [state for each in _containers(pod, container) for state in (each.state, each.last_state) if state]
    return any(state.running or state.terminated for state in states)


def runs(pod: Pod, container: str) -> bool:
    """Whether the container runs now."""
    return any(each.state and each.state.running for each in _containers(pod, container))


def _containers(pod: Pod, name: str) -> list[Any]:
    return [each for each in pod.status.container_statuses or [] if each.name == name]


def _life(state: Any, known: Life) -> Iterator[Life]:
    if running := state.running:
        yield replace(known, container=_moment(running.started_at))
    elif ended := state.terminated:
        reason = ended.reason if ended.reason not in ("Error", "Completed") else None
        yield replace(
            known,
            container=_moment(ended.started_at),
            ended=_moment(ended.finished_at),
            code=ended.exit_code,
            cause=((ended.message or "").strip() or reason) if ended.exit_code else None,
        )


def _moment(when: datetime | None) -> float | None:
    return when.timestamp() if when else None
