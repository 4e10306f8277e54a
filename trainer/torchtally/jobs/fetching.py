"""Copies the results of a job from its PVC, through a pod that mounts it and is deleted afterwards."""

import io
import json
import tarfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, stream
from kubernetes.client.exceptions import ApiException
from kubernetes.stream.ws_client import STDERR_CHANNEL, STDOUT_CHANNEL
from websocket import WebSocketException

from torchtally.cluster.job_kinds import TIMEOUT, ClusterError, ClusterJob, PyTorchJob, Unreachable
from torchtally.jobs.cluster import Cluster, waits
from torchtally.proof.statement import Statement, sha256_of

_OUTPUT = "/output"
_READER = "torchtally/reader"  # the chart's annotation of its claim: the spec of a pod that mounts it
_WAIT = 300.0  # seconds for the pod to start
_LIFE = 3600  # seconds of a pod that nobody deletes
_SILENCE = 60.0  # seconds after which a connection is lost
_CONTAINER = "fetch"
_COPIED = ("imagePullSecrets", "nodeSelector", "tolerations", "securityContext")  # from a pod of the job
# To read needs no more. A job or a claim that others may edit must give them no more of this user's rights.
_RIGHTS = {"privileged": False, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class Wrong(Exception):
    """What was copied is not what its proof says; the text is a sentence."""


@dataclass(frozen=True)
class Source:
    """Where the results of a job are."""

    job: str  # its name
    pod: dict[str, Any]  # that mounts the claim to read


def fetch(cluster: Cluster, source: Source, folder: Path, *, checkpoints: bool) -> list[str]:
    """Copy the files to an empty `folder`; returns their names. Raises ClusterError, Wrong, and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with _running(cluster, source) as name:
        left_out = [] if checkpoints else ["--exclude=./checkpoints"]
        _unpack(cluster, name, ["tar", "-C", _OUTPUT, *left_out, "-cf", "-", "."], folder)
    _check(folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def of_job(cluster: Cluster, job: ClusterJob) -> Source:
    """By the spec of a pod of the job. Raises ClusterError."""
    if isinstance(job, PyTorchJob):
        replicas = job.spec["pytorchReplicaSpecs"]
        spec: dict[str, Any] = replicas.get("Master", replicas.get("Worker"))["template"]["spec"]
    elif pods := cluster.pods(job):
        spec = cluster.api.sanitize_for_serialization(next(iter(pods.values())).spec)  # type: ignore[no-untyped-call]
    else:
        return of_claim(cluster, job.name, f"{job.kind} {job.name} has no pod left")
    pod = _made_of(spec, job.container, job.name)
    if pod is None:
        raise ClusterError(
            f"{job.kind} {job.name} has no PVC at {_OUTPUT}: its results are gone with its pods; mount one there, as "
            "the chart does with model.enabled"
        )
    return Source(job.name, pod)


def of_claim(cluster: Cluster, job: str, why: str) -> Source:
    """By the claim that the chart made for a job, which is gone, as `why` says. Raises ClusterError."""
    name = f"{job}-model"
    try:
        with cluster.told(f"PVC {name}", "persistentvolumeclaims", "get"):
            claim: Any = cluster.core.read_namespaced_persistent_volume_claim(
                name, cluster.namespace, _request_timeout=TIMEOUT
            )
    except ClusterError as error:
        kind = type(error)
        if isinstance(error.__cause__, ApiException) and error.__cause__.status == 404:
            raise ClusterError(f"{why}, and no PVC {name}, where the chart keeps a job's results") from error
        raise kind(f"{why}; {error}") from error
    try:
        spec = json.loads((claim.metadata.annotations or {})[_READER])
        pod = _made_of(spec, spec["containers"][0]["name"], job)
    except (ValueError, LookupError, TypeError):
        pod = None
    if pod is None:
        raise ClusterError(
            f"{why}; its PVC {name} has no annotation {_READER} of the chart's, which tells how to mount it: "
            "mount it in a pod of your own"
        )
    return Source(job, pod)


def _made_of(spec: dict[str, Any], container_name: str, job: str) -> dict[str, Any] | None:
    """The pod that mounts the claim as the training does, to read; None without a claim."""
    container = next(each for each in spec["containers"] if each["name"] == container_name)
    mounts = [each for each in container.get("volumeMounts", []) if each["mountPath"].rstrip("/") == _OUTPUT]
    names = {each["name"] for each in mounts}
    volumes = [each for each in spec.get("volumes", []) if each["name"] in names and "persistentVolumeClaim" in each]
    if not volumes:
        return None
    copied = {name: spec[name] for name in _COPIED if name in spec}
    return {
        "metadata": {
            "name": f"{job}-fetch-{uuid.uuid4().hex[:5]}",
            "labels": {"app.kubernetes.io/managed-by": "torchtally_jobs"},
        },
        "spec": {
            **copied,
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": container["image"],
                    "imagePullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
                    "command": ["sleep", str(_LIFE)],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                        "limits": {"cpu": "1", "memory": "1Gi"},
                    },
                    "securityContext": {**container.get("securityContext", {}), **_RIGHTS},
                    "volumeMounts": [{**mounts[0], "readOnly": True}],
                }
            ],
            "volumes": volumes,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        },
    }


@contextmanager
def _running(cluster: Cluster, source: Source) -> Iterator[str]:
    """The name of the pod while it runs."""
    pod: Any = source.pod
    name, core = pod["metadata"]["name"], cluster.core
    with cluster.told(f"a pod that mounts the PVC of {source.job}", "pods", "create"):
        core.create_namespaced_pod(cluster.namespace, pod, _request_timeout=TIMEOUT)
    try:
        ends = time.monotonic() + _WAIT
        while True:
            with cluster.told(f"pod {name}", "pods", "get"):
                found: Any = core.read_namespaced_pod(name, cluster.namespace, _request_timeout=TIMEOUT)
            if found.status.phase == "Running":
                break
            if found.status.phase != "Pending" or time.monotonic() > ends:
                why = waits(found) or found.status.reason or found.status.phase
                raise ClusterError(f"pod {name}, which mounts the PVC of {source.job}, has not started: {why}")
            time.sleep(1)
        yield name
    finally:
        with suppress(ApiException, urllib3.exceptions.HTTPError):
            core.delete_namespaced_pod(name, cluster.namespace, grace_period_seconds=0, _request_timeout=TIMEOUT)


def _unpack(cluster: Cluster, pod: str, command: list[str], folder: Path) -> None:
    with cluster.told(f"the files of pod {pod}", "pods/exec", "create"):
        # A client of its own: `stream` changes how the client that it is given makes its requests.
        core = client.CoreV1Api(client.ApiClient(cluster.settings))
        try:
            socket = stream.stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                cluster.namespace,
                command=command,
                container=_CONTAINER,
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except WebSocketException as error:
            raise Unreachable(f"cannot reach the cluster at {cluster.settings.host}: {error}") from error
    packed = _Packed(socket)
    try:
        with tarfile.open(fileobj=io.BufferedReader(packed), mode="r|") as archive:
            archive.extractall(folder, filter="data")
        while packed.read(1 << 16):
            pass
    except (tarfile.TarError, WebSocketException) as error:
        raise ClusterError(f"the files of pod {pod} cannot be read: {packed.said or error}") from error
    finally:
        socket.close()
    if socket.returncode:
        raise ClusterError(f"the files of pod {pod} cannot be read: {packed.said}")


class _Packed(io.RawIOBase):
    """What a command in a pod writes."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._left, self._errors = socket, b"", b""

    @property
    def said(self) -> str:
        return self._errors.decode(errors="replace").strip()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            was_open = self._socket.is_open()
            self._socket.update(timeout=_SILENCE)
            self._errors += self._socket.read_channel(STDERR_CHANNEL) or b""
            self._left = self._socket.read_channel(STDOUT_CHANNEL) or b""
            if not was_open and not self._left:
                return 0
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _check(folder: Path) -> None:
    """Compare the files with their hashes in the proof; a checkpoint, if it was copied. Raises Wrong."""
    proof = folder / "proof.json"
    if not proof.exists():
        return
    try:
        stated = Statement.parse(proof.read_bytes())
    except ValueError as error:
        raise Wrong(f"{proof} is no proof: {error}") from error
    for name, sha256 in stated.subjects.items():
        file = folder / name
        if not file.exists():
            if name == stated.predicate.checkpoint:
                continue
            raise Wrong(f"{file} is missing, and {proof} names it")
        if (found := sha256_of(file)[1]) != sha256:
            raise Wrong(f"{file} is sha256:{found}, and {proof} is of sha256:{sha256}")
