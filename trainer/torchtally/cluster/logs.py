"""The logs of the pods of a PyTorchJob or a TrainJob, as the cluster has them."""

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from torchtally.cluster import batch_kinds, job_kinds, observer_volume, wait
from torchtally.cluster.job_kinds import TIMEOUT, ClusterError, ClusterJob, Unreachable
from torchtally.verifier.log import Complaint, Log, is_whole
from torchtally.verifier.outcome import Outcome, Unsuccessful

_WHY_SILENT = (
    "its program imports no torch.utils.data, is a Python before 3.8 or with -I, -E, or -S, sets PYTHONPATH anew, or"
    " has a sitecustomize in an earlier folder of PYTHONPATH"
)
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def read_job(name: str, namespace: str | None, context: str | None, *, wait_seconds: float | None = None) -> Log:
    """The logs of all pods of the job, once it has ended or `wait_seconds` are over. Raises ClusterError.

    Pods without a log become complaints.
    """
    settings, own_namespace = connect(context)
    with client.ApiClient(settings) as api:
        look = partial(find, client.CustomObjectsApi(api), name, namespace or own_namespace)
        read_of = partial(read, client.CoreV1Api(api))
        if wait_seconds is None:
            return read_of(look())
        job = wait.until_end(look, wait_seconds)
        return wait.until_read(partial(read_of, job))


def find(api: client.CustomObjectsApi, name: str, namespace: str) -> ClusterJob:
    """The job of this name, of whichever kind. Raises ClusterError."""
    try:
        try:
            return job_kinds.find(api, name, namespace)
        except ClusterError as error:
            if not isinstance(error, Unreachable) and (other := batch_kinds.find(api, name, namespace)):
                return other
            raise
    except urllib3.exceptions.HTTPError as error:
        raise _no_answer(api.api_client, error) from error


def _no_answer(api: client.ApiClient, error: Exception) -> Unreachable:
    return Unreachable(f"cannot reach the cluster at {api.configuration.host}: {error}")


def read(core: client.CoreV1Api, job: ClusterJob, log: Log | None = None, pods: Sequence[str] | None = None) -> Log:
    """A log, or this one, with the logs of all pods of the job, or of these. Raises ClusterError."""
    log = Log() if log is None else log
    try:
        pods = job.pods(core) if pods is None else pods
    except urllib3.exceptions.HTTPError as error:
        raise _no_answer(core.api_client, error) from error
    if not job.ended:
        log.notes.append(f"job {job.name} has not ended ({job.state}): later lines are missing")
        log.job = Unsuccessful(Outcome.PENDING, job.sentence)
    elif job.state == "Failed":
        log.notes.append(f"job {job.name} has failed{job.why_failed}")
        log.job = Unsuccessful(Outcome.FAILED, job.sentence)
    for pod in pods:
        try:
            _read_pod(log, core, pod, job)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the log of pod {pod} was interrupted: {error}") from error
    return log


def connect(context: str | None) -> tuple[client.Configuration, str]:
    """How to reach the cluster, by the kubeconfig or as a pod in it, and the namespace to look in by default.

    Raises ClusterError.
    """
    settings = client.Configuration()
    settings.retries = False  # report at once that a cluster does not answer
    try:
        config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
        contexts, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        chosen = next(each for each in contexts if each["name"] == context) if context else current
        return settings, chosen["context"].get("namespace", "default")
    except config.ConfigException as error:
        if context:
            raise ClusterError(f"cannot use the context {context}: {error}") from error
        outside = error
    try:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        return settings, _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    except (config.ConfigException, OSError):
        raise ClusterError(f"no cluster: not in a pod with a service account, and no kubeconfig ({outside})") from None


def stream(core: client.CoreV1Api, pod: str, job: ClusterJob, **options: Any) -> TextIO:
    """The log of a pod as it arrives. Raises ApiException and urllib3's HTTPError, which reading it raises, too."""
    # Not preloaded, this is urllib3's response, unlike in the signature.
    response: Any = core.read_namespaced_pod_log(
        pod, job.namespace, container=job.container, _preload_content=False, **options
    )
    response.auto_close = False  # urllib3 would close at the end, before the wrapper sees that it is one
    return io.TextIOWrapper(response, "utf-8", "replace", newline="")


def _read_pod(log: Log, core: client.CoreV1Api, pod: str, job: ClusterJob) -> None:
    what, resource = f"pod {pod}", "pods"
    try:
        found = core.read_namespaced_pod(pod, job.namespace, _request_timeout=TIMEOUT)
        status = found.status
        if status and status.phase == "Pending":
            log.complaints.append(Complaint(f"pod {pod} has not started{_why(status)}", no_log=True))
            return
        if status and status.phase == "Running" and job.ended:  # a PyTorchJob ends with its master
            log.notes.append(f"pod {pod} is still running: later lines are missing")
        what, resource = f"the log of pod {pod}", "pods/log"
        arriving = stream(core, pod, job, _request_timeout=TIMEOUT)
    except ApiException as error:
        if error.status not in (400, 404):
            raise job_kinds.refused(error, what, job.namespace, resource) from error
        if error.status == 400:
            why = f"has no log yet: {job_kinds.message(error)}"
        elif job.ended:
            why = f"is gone, and its log with it{job.why_gone}"
        else:
            why = f"does not exist (the job is {job.state})"
        log.complaints.append(Complaint(f"pod {pod} {why}", no_log=True))
        return
    before = log.observed.count
    with arriving:
        log.read(f"pod {pod}", arriving)
    _add_kept(log, status, pod, job.container)
    if job.ended and log.observed.count == before and observer_volume.carries(found):
        log.complaints.append(Complaint(f"pod {pod} has the observer, and no line of it: {_WHY_SILENT}", no_log=True))


def _add_kept(log: Log, status: client.V1PodStatus | None, pod: str, container: str) -> None:
    """Add the last lines of runs that a container's termination message has: its log may have been rotated."""
    for each in (status.container_statuses if status else None) or []:
        if each.name == container and each.state and (ended := each.state.terminated) and ended.message:
            for line in ended.message.splitlines():
                if is_whole(line):
                    log.add(line, f"the termination message of pod {pod}")


def _why(status: client.V1PodStatus) -> str:
    known = reasons(status)
    return f" ({', '.join(known)})" if known else ""


def reasons(status: client.V1PodStatus) -> list[str]:
    """Why a pending pod does not start, as far as its status tells."""
    first = status.init_container_statuses or []
    containers = [*first, *(status.container_statuses or [])]
    told: set[str | None] = {f"{each.name} runs" for each in first if each.state and each.state.running}
    told |= {each.state.waiting.reason for each in containers if each.state and each.state.waiting}
    told |= {each.reason for each in status.conditions or [] if each.status == "False"}
    known = told - {None, "PodInitializing", "ContainersNotReady", "ContainersNotInitialized"}
    return sorted(map(str, known))
