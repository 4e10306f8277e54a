"""A job as the cluster has it: its pods, what happened to them, and the beginning of what they have logged."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from verify import cluster, job_kinds
from verify.job_kinds import TIMEOUT, ClusterError

_LOG_BYTES = 1 << 20  # of a pod's log, from its beginning: a first step is not further on

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """Objects as the API server gave them. `found` is None where there is no pod of this name."""

    name: str
    found: Object | None
    events: list[Object]
    log: list[str]  # lines


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    namespace: str
    state: str
    created: float  # seconds since 1970
    container: str  # of each pod, in which it trains
    pods: list[Pod]


def moment(text: str) -> float:
    """Seconds since 1970 of a timestamp of Kubernetes'. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()


def read(name: str, namespace: str | None, context: str | None) -> Job:
    """The job of this name, of whichever kind. Raises ClusterError."""
    settings, own_namespace = cluster.connect(context)
    namespace = namespace or own_namespace
    with client.ApiClient(settings) as api:
        core = client.CoreV1Api(api)
        try:
            job = job_kinds.find(client.CustomObjectsApi(api), name, namespace)
            pods = [_pod(core, pod, job) for pod in job.pods(core)]
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"cannot reach the cluster at {settings.host}: {error}") from error
        except ApiException as error:
            what = f"the pods of {name}, their events or their logs"
            raise job_kinds.refused(error, what, namespace, "pods, pods/log and events", "get, list") from error
    return Job(
        name=job.name,
        namespace=job.namespace,
        state=job.state,
        created=moment(job.created),
        container=job.container,
        pods=pods,
    )


def _pod(core: client.CoreV1Api, name: str, job: job_kinds.ClusterJob) -> Pod:
    text = _asked(core.read_namespaced_pod, name, job.namespace)
    if text is None:
        return Pod(name=name, found=None, events=[], log=[])
    found = json.loads(text)
    selector = f"involvedObject.kind=Pod,involvedObject.uid={found['metadata']['uid']}"  # not an earlier one's
    events = json.loads(_asked(core.list_namespaced_event, job.namespace, field_selector=selector) or "{}")
    log = []
    statuses = found["status"].get("containerStatuses", [])
    if any(each["name"] == job.container and each["restartCount"] for each in statuses):
        log += _log(core, name, job, previous=True)
    return Pod(name=name, found=found, events=events.get("items", []), log=log + _log(core, name, job))


def _log(core: client.CoreV1Api, pod: str, job: job_kinds.ClusterJob, **options: bool) -> list[str]:
    asked = options | {"container": job.container, "limit_bytes": _LOG_BYTES}
    text = _asked(core.read_namespaced_pod_log, pod, job.namespace, **asked)
    return (text or "").split("\n")


def _asked(call: Callable[..., Any], *arguments: str, **options: Any) -> str | None:
    """The answer as text; None where there is no such thing (404), or no log yet (400). Raises ApiException."""
    try:
        # Not preloaded, this is urllib3's response, whatever the signature says.
        response = call(*arguments, **options, _preload_content=False, _request_timeout=TIMEOUT)
        return str(response.data, "utf-8", "replace")
    except ApiException as error:
        if error.status in (400, 404):
            return None
        raise
