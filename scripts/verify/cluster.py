"""The logs of a PyTorchJob's pods, each asked for by its name: that is all the RBAC of `helm test` allows."""

import io
import json
from pathlib import Path
from typing import Any, cast

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from .lines import Complaint, Log

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONTAINER = "pytorch"  # the operator's webhook insists on this name
_ENDED = ("Succeeded", "Failed")
_TIMEOUT = (10, 60)  # seconds to connect, and between two reads


class ClusterError(Exception):
    """The cluster, or the job in it, cannot be read."""


def read_job(log: Log, name: str, namespace: str | None, context: str | None) -> None:
    """Add the log of every pod of the job; pods without one become complaints."""
    settings, own_namespace = _connect(context)
    namespace = namespace or own_namespace
    with client.ApiClient(settings) as api:
        try:
            found = client.CustomObjectsApi(api).get_namespaced_custom_object(
                "kubeflow.org", "v1", namespace, "pytorchjobs", name, _request_timeout=_TIMEOUT
            )
            job = cast(dict[str, Any], found)
        except ApiException as error:
            raise _job_error(error, name, namespace) from error
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"cannot reach the cluster at {settings.host}: {error}") from error
        state = _state(job)
        if state not in _ENDED:
            log.notes.append(f"job {name} has not ended ({state}): what it has not logged yet is missing here")
        elif state == "Failed":
            log.notes.append(f"job {name} has failed{_why_failed(job)}")
        core = client.CoreV1Api(api)
        for pod in _pods(job, name):
            try:
                _read_pod(log, core, pod, namespace, state, _clean_pod_policy(job))
            except ApiException as error:
                raise ClusterError(_refused(error, f"pod {pod} or its log", namespace, "pods and pods/log")) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise ClusterError(f"the log of pod {pod} broke off: {error}") from error


def _connect(context: str | None) -> tuple[client.Configuration, str]:
    """How to reach the cluster, by the kubeconfig or as a pod in it, and the namespace to look in by default."""
    settings = client.Configuration()
    settings.retries = False  # a cluster that does not answer is told at once
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


def _pods(job: dict[str, Any], name: str) -> list[str]:
    return [
        f"{name}-{kind.lower()}-{index}"
        for kind, spec in sorted(job["spec"].get("pytorchReplicaSpecs", {}).items())
        for index in range(spec.get("replicas", 1))
    ]


def _read_pod(log: Log, core: client.CoreV1Api, pod: str, namespace: str, state: str, policy: str) -> None:
    try:
        status = core.read_namespaced_pod(pod, namespace, _request_timeout=_TIMEOUT).status
        if status and status.phase == "Pending":
            log.complaints.append(Complaint(f"pod {pod} has not started{_waits_for(status)}"))
            return
        if status and status.phase == "Running" and state in _ENDED:  # the master's end is the job's
            log.notes.append(f"pod {pod} is still running: what it has not logged yet is missing here")
        # Not preloaded, this is urllib3's response, whatever the signature says: the log is read as it arrives.
        response: Any = core.read_namespaced_pod_log(
            pod, namespace, container=_CONTAINER, _preload_content=False, _request_timeout=_TIMEOUT
        )
    except ApiException as error:
        if error.status not in (400, 404):
            raise
        if error.status == 400:
            why = f"has no log yet: {_said(error)}"
        elif state in _ENDED:
            why = f"is gone, and its log with it (the job's cleanPodPolicy is {policy}; None keeps pods)"
        else:
            why = f"does not exist (the job is {state})"
        log.complaints.append(Complaint(f"pod {pod} {why}"))
        return
    response.auto_close = False  # urllib3 would close at the end, before the wrapper sees that it is one
    with io.TextIOWrapper(response, "utf-8", "replace", newline="") as stream:
        log.read(f"pod {pod}", stream)


def _waits_for(status: client.V1PodStatus) -> str:
    """Why a pending pod does not start, as far as it says."""
    first = status.init_container_statuses or []
    containers = [*first, *(status.container_statuses or [])]
    reasons: set[str | None] = {f"{each.name} runs" for each in first if each.state and each.state.running}
    reasons |= {each.state.waiting.reason for each in containers if each.state and each.state.waiting}
    reasons |= {each.reason for each in status.conditions or [] if each.status == "False"}
    told = reasons - {None, "PodInitializing", "ContainersNotReady", "ContainersNotInitialized"}
    return f" ({', '.join(sorted(map(str, told)))})" if told else ""


def _state(job: dict[str, Any]) -> str:
    """The type of the last condition that holds, as kubectl's column shows it."""
    conditions = job.get("status", {}).get("conditions") or []
    return next((each["type"] for each in reversed(conditions) if each["status"] == "True"), "no status yet")


def _why_failed(job: dict[str, Any]) -> str:
    messages = [each.get("message", "") for each in job["status"]["conditions"] if each["type"] == "Failed"]
    return f": {messages[-1]}" if messages and messages[-1] else ""


def _clean_pod_policy(job: dict[str, Any]) -> str:
    return str(job["spec"].get("runPolicy", {}).get("cleanPodPolicy", "None"))


def _job_error(error: ApiException, name: str, namespace: str) -> ClusterError:
    if error.status != 404:
        return ClusterError(_refused(error, f"PyTorchJob {name}", namespace, "pytorchjobs"))
    try:
        known = json.loads(error.body or "")["details"]["name"] == name
    except (ValueError, KeyError, TypeError):  # plain text: the resource itself is unknown
        known = False
    if known:
        return ClusterError(f"no PyTorchJob {name} in namespace {namespace} (ttlSecondsAfterFinished deletes old ones)")
    return ClusterError("this cluster does not know PyTorchJobs: is the training operator installed?")


def _refused(error: ApiException, what: str, namespace: str, resources: str) -> str:
    if error.status == 403:
        return (
            f"forbidden to read {what} in namespace {namespace}: a role must allow get on {resources} ({_said(error)})"
        )
    return f"cannot read {what} in namespace {namespace}: {error.status} {_said(error)}"


def _said(error: ApiException) -> str:
    """The API server's own sentence."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
