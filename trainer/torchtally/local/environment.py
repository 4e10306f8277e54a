"""The variables and the command of each pod, as the operator and Kubernetes would make them.

What a pod is given by its job is `pod_environment`, alone; what a process needs of its machine beside it is
`host_environment`. The first equals what a cluster gives, variable by variable, but for addresses.
"""

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any

import psutil

from torchtally.local.job import LocalJob, Pod, quantity

# What every process needs, and what a network with a proxy and its own certificates asks for.
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_.+|TZ|TMPDIR|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|XDG_CACHE_HOME"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:https?_proxy|no_proxy|all_proxy)"
    r"|TORCHTALLY_.+"  # where the image would set the folders of the data and the model
)
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_TRAINER_PORT = 29500  # of Kubeflow Trainer
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the pods of a job reach each other; by default by their names, as in a cluster."""

    translated: Mapping[Address, Address] = field(default_factory=dict)
    pod_ip: str | None = None  # without one, a pod's name stands for its address

    def reach(self, address: Address) -> Address:
        return self.translated.get(address, address)


def addresses(job: LocalJob) -> list[Address]:
    """Where the pods of this job listen for each other."""
    found = []
    if "Master" in job.replicas or job.kind == "TrainJob":
        found.append(_master(job))
    if job.elastic is not None and _rendezvous(job).host in {pod.name for pod in job.pods}:
        found.append(_rendezvous(job))
    return list(dict.fromkeys(found))


def loopback(job: LocalJob, ports: Iterator[int]) -> Network:
    """All pods on this machine, each address on a port of its own."""
    return Network(
        translated={address: Address("127.0.0.1", next(ports)) for address in addresses(job)}, pod_ip="127.0.0.1"
    )


def pod_environment(job: LocalJob, pod: Pod, network: Network | None = None) -> dict[str, str]:
    """What the job gives a pod: the user's variables, expanded, then the operator's."""
    network = network or Network()
    variables: dict[str, str] = {}
    for source in pod.container.get("envFrom", []):
        variables |= _from_source(job, source) or {}
    for entry in pod.container.get("env", []):
        if "valueFrom" in entry:
            value = _from_reference(job, pod, entry["valueFrom"], network)
            if value is not None:
                variables[entry["name"]] = value
        else:
            variables[entry["name"]] = expand(entry.get("value", ""), variables)
    return variables | dict(_operator_variables(job, pod, network))


def host_environment(pod: Pod, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a process takes from its machine: little, its host name as in a pod, and what the image would set."""
    inherited = {name: value for name, value in environment.items() if _INHERITED.fullmatch(name)}
    return {"TORCHTALLY_OBSERVE": "auto"} | inherited | {"HOSTNAME": pod.name}


def command(pod: Pod, variables: Mapping[str, str]) -> tuple[list[str] | None, list[str]]:
    """The command, None if it is the image's own, and its arguments."""
    given, args = pod.container.get("command"), pod.container.get("args", [])
    return [expand(part, variables) for part in given] if given else None, [expand(part, variables) for part in args]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' $(NAME): an unknown name stays as it is, and $$ is a dollar."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def unresolved(job: LocalJob) -> list[str]:
    """The references that no document of the file resolves, and that a cluster would ask for."""
    missing = []
    for pod in job.pods:
        for source in pod.container.get("envFrom", []):
            if _from_source(job, source) is None:
                missing += [f"envFrom {kind}" for kind in _named(source, ("configMapRef", "secretRef"))]
        for entry in pod.container.get("env", []):
            source = entry.get("valueFrom", {})
            if source and _from_reference(job, pod, source, Network()) is None:
                kinds = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef")
                missing += [f"env {entry['name']} from {kind}" for kind in _named(source, kinds)]
    return list(dict.fromkeys(missing))


def _operator_variables(job: LocalJob, pod: Pod, network: Network) -> Iterator[tuple[str, str]]:
    pods = sum(replica.count for replica in job.replicas.values())
    if job.kind == "TrainJob":
        first = network.reach(_master(job))
        yield "PET_NNODES", str(pods)
        yield "PET_NPROC_PER_NODE", job.nproc_per_node or "auto"
        yield "PET_NODE_RANK", str(pod.index)
        yield "PET_MASTER_ADDR", first.host
        yield "PET_MASTER_PORT", str(first.port)
        return
    yield "PYTHONUNBUFFERED", "1"
    if "Master" in job.replicas:
        master = network.reach(_master(job))
        yield "MASTER_PORT", str(master.port)
        yield "PET_MASTER_PORT", str(master.port)
        yield "MASTER_ADDR", master.host
        yield "PET_MASTER_ADDR", master.host
        # The operator counts processes here and, just below, pods; what is no number counts as one process.
        is_number = re.fullmatch(r"[+-]?[0-9]+", job.nproc_per_node or "")
        yield "WORLD_SIZE", str(pods * (int(job.nproc_per_node or 1) if is_number else 1))
        rank = pod.index + (pod.replica.kind == "Worker")
        yield "RANK", str(rank)
        yield "PET_NODE_RANK", str(rank)
    if job.nproc_per_node is not None:
        yield "PET_NPROC_PER_NODE", job.nproc_per_node
    if job.elastic is None:
        yield "PET_NNODES", str(pods)
    else:
        yield from _elastic_variables(job.elastic, network.reach(_rendezvous(job)))


def needs_server(policy: Mapping[str, Any]) -> bool:
    """Whether an elastic job meets at an etcd server, which is not here: its pods meet at the first worker."""
    return str(policy.get("rdzvBackend", "")).startswith("etcd")


def _elastic_variables(policy: Mapping[str, Any], endpoint: Address) -> Iterator[tuple[str, str]]:
    yield "PET_RDZV_ENDPOINT", f"{endpoint.host}:{endpoint.port}"
    yield "PET_RDZV_BACKEND", "c10d" if needs_server(policy) else policy.get("rdzvBackend", "c10d")
    yield "PET_NNODES", f"{policy['minReplicas']}:{policy['maxReplicas']}"
    for name, key in (
        ("PET_MAX_RESTARTS", "maxRestarts"),
        ("PET_NPROC_PER_NODE", "nProcPerNode"),
        ("PET_RDZV_ID", "rdzvId"),
    ):
        if key in policy:
            yield name, str(policy[key])
    if policy.get("rdzvConf"):
        yield "PET_RDZV_CONF", ",".join(f"{conf.get('key', '')}={conf.get('value', '')}" for conf in policy["rdzvConf"])
    if policy.get("standalone"):
        yield "PET_STANDALONE", ""


def _master(job: LocalJob) -> Address:
    if job.kind == "TrainJob":
        return Address(job.pods[0].name, _TRAINER_PORT)
    return Address(f"{job.name}-master-0", job.replicas["Master"].port)


def _rendezvous(job: LocalJob) -> Address:
    policy = {} if needs_server(job.elastic or {}) else job.elastic or {}
    return Address(policy.get("rdzvHost", f"{job.name}-worker-0"), policy.get("rdzvPort", job.replicas["Worker"].port))


def _from_reference(job: LocalJob, pod: Pod, source: Mapping[str, Any], network: Network) -> str | None:
    if "fieldRef" in source:
        return _pod_field(job, pod, source["fieldRef"]["fieldPath"], network)
    if "resourceFieldRef" in source:
        return _resource(pod, source["resourceFieldRef"])
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in source:
            return job.config.get((kind, source[key].get("name", "")), {}).get(source[key]["key"])
    return None


def _from_source(job: LocalJob, source: Mapping[str, Any]) -> dict[str, str] | None:
    for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
        data = job.config.get((kind, source.get(key, {}).get("name", "")))
        if data is not None:
            return {source.get("prefix", "") + name: value for name, value in data.items()}
    return None


def _named(source: Mapping[str, Any], kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        if kind in source and not source[kind].get("optional"):
            name = source[kind].get("name") or source[kind].get("fieldPath") or source[kind].get("resource")
            yield f"{kind} {name}"


def _pod_field(job: LocalJob, pod: Pod, path: str, network: Network) -> str | None:
    if subscript := _SUBSCRIPT.fullmatch(path):
        values = pod.labels if subscript[1] == "labels" else pod.annotations
        return values.get(subscript[2], "")
    ip = network.pod_ip or pod.name
    return {
        "metadata.name": pod.name,
        "metadata.namespace": job.namespace,
        "metadata.uid": f"{job.namespace}-{pod.name}",
        "spec.nodeName": platform.node(),
        "spec.serviceAccountName": pod.spec.get("serviceAccountName", "default"),
        "status.podIP": ip,
        "status.podIPs": ip,
        "status.hostIP": ip,
        "status.hostIPs": ip,
    }.get(path)


def _resource(pod: Pod, reference: Mapping[str, Any]) -> str | None:
    kind, _, name = reference["resource"].partition(".")
    resources = pod.container.get("resources", {})
    limit = resources.get("limits", {}).get(name)
    given = resources.get("requests", {}).get(name, limit) if kind == "requests" else limit
    if given is None:  # without a limit, what the node has
        given = {"cpu": os.cpu_count(), "memory": psutil.virtual_memory().total}.get(name)
    if given is None:
        return None
    divisor = quantity(reference.get("divisor", 1)) or Decimal(1)
    return str(ceil(quantity(given) / divisor))
