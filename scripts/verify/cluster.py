"""The logs of the pods of a PyTorchJob or a TrainJob, as the cluster has them."""

import io
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from . import job_kinds
from .job_kinds import TIMEOUT, ClusterError, ClusterJob
from .log import Complaint, Log

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def read_job(log: Log, name: str, namespace: str | None, context: str | None) -> None:
    """Add the log of every pod of the job; pods without one become complaints. Raises ClusterError."""
    settings, own_namespace = connect(context)
    namespace = namespace or own_namespace
    with client.ApiClient(settings) as api:
        core = client.CoreV1Api(api)
        try:
            job = job_kinds.find(client.CustomObjectsApi(api), name, namespace)
            pods = job.pods(core)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"cannot reach the cluster at {settings.host}: {error}") from error
        if not job.ended:
            log.notes.append(f"job {job.name} has not ended ({job.state}): later lines are missing")
        elif job.state == "Failed":
            log.notes.append(f"job {job.name} has failed{job.why_failed}")
        for pod in pods:
            try:
                _read_pod(log, core, pod, job)
            except ApiException as error:
                raise ClusterError(
                    job_kinds.refused(error, f"pod {pod} or its log", namespace, "pods and pods/log")
                ) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise ClusterError(f"the log of pod {pod} was interrupted: {error}") from error


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


def _read_pod(log: Log, core: client.CoreV1Api, pod: str, job: ClusterJob) -> None:
    try:
        status = core.read_namespaced_pod(pod, job.namespace, _request_timeout=TIMEOUT).status
        if status and status.phase == "Pending":
            log.complaints.append(Complaint(f"pod {pod} has not started{_waits_for(status)}", no_log=True))
            return
        if status and status.phase == "Running" and job.ended:  # a PyTorchJob ends with its master
            log.notes.append(f"pod {pod} is still running: later lines are missing")
        # Not preloaded, this is urllib3's response, unlike in the signature: the log is read as it arrives.
        response: Any = core.read_namespaced_pod_log(
            pod, job.namespace, container=job.container, _preload_content=False, _request_timeout=TIMEOUT
        )
    except ApiException as error:
        if error.status not in (400, 404):
            raise
        if error.status == 400:
            why = f"has no log yet: {job_kinds.message(error)}"
        elif job.ended:
            why = f"is gone, and its log with it{job.why_gone}"
        else:
            why = f"does not exist (the job is {job.state})"
        log.complaints.append(Complaint(f"pod {pod} {why}", no_log=True))
        return
    response.auto_close = False  # urllib3 would close at the end, before the wrapper sees that it is one
    with io.TextIOWrapper(response, "utf-8", "replace", newline="") as stream:
        log.read(f"pod {pod}", stream)


def _waits_for(status: client.V1PodStatus) -> str:
    """Why a pending pod does not start, as far as its status tells."""
    first = status.init_container_statuses or []
    containers = [*first, *(status.container_statuses or [])]
    reasons: set[str | None] = {f"{each.name} runs" for each in first if each.state and each.state.running}
    reasons |= {each.state.waiting.reason for each in containers if each.state and each.state.waiting}
    reasons |= {each.reason for each in status.conditions or [] if each.status == "False"}
    known = reasons - {None, "PodInitializing", "ContainersNotReady", "ContainersNotInitialized"}
    return f" ({', '.join(sorted(map(str, known)))})" if known else ""
