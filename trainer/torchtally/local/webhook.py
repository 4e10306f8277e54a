"""What the operator's validation would refuse, in its own words."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REPLICA_TYPES = ("Master", "Worker")
CONTAINER = "pytorch"

_MANAGERS = ("kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator")
_RESTART_POLICIES = ("Always", "ExitCode", "Never", "OnFailure")
_CLEAN_POD_POLICIES = ("All", "None", "Running")
_DNS_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"


def validate(job: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The warnings and the errors for a PyTorchJob as it was written, before any default."""
    spec = job["spec"]
    warnings = []
    if "nProcPerNode" in spec.get("elasticPolicy", {}):
        warnings.append("spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead")
    errors = [
        *_name(job["metadata"]["name"]),
        *_run_policy(spec.get("runPolicy", {})),
        *_elastic(spec),
        *_replicas(spec["pytorchReplicaSpecs"]),
    ]
    return warnings, errors


def aggregate(errors: Sequence[str]) -> str:
    """Several errors as one text, each of them once."""
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def _name(name: str) -> Iterator[str]:
    problems = []
    if len(name) > 63:
        problems.append("must be no more than 63 characters")
    if not re.fullmatch(_DNS_1035, name):
        problems.append(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
            "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
            f"validation is '{_DNS_1035}')"
        )
    if problems:
        yield f"metadata.name: Invalid value: {json.dumps(name)}: should match: {','.join(problems)}"


def _run_policy(policy: Mapping[str, Any]) -> Iterator[str]:
    if "managedBy" in policy:
        yield from _supported("spec.runPolicy.managedBy", policy["managedBy"], _MANAGERS)
    # The operator takes any other text here and deletes all pods: a local run is no place to learn that.
    if "cleanPodPolicy" in policy:
        yield from _supported("spec.runPolicy.cleanPodPolicy", policy["cleanPodPolicy"], _CLEAN_POD_POLICIES)


def _elastic(spec: Mapping[str, Any]) -> Iterator[str]:
    if "elasticPolicy" not in spec:
        return
    if "Worker" not in spec["pytorchReplicaSpecs"]:
        path = "spec.pytorchReplicaSpecs[Worker]"
        yield f"{path}: Required value: must be configured if elastic policy is used"
    if "nProcPerNode" in spec["elasticPolicy"] and "nprocPerNode" in spec:
        yield "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode"


def _replicas(replicas: Mapping[str, Any]) -> Iterator[str]:
    for kind, replica in replicas.items():
        path = f"spec.pytorchReplicaSpecs[{kind}]"
        yield from _supported(path, kind, REPLICA_TYPES)
        containers = replica.get("template", {}).get("spec", {}).get("containers", [])
        where = f"{path}.template.spec.containers"
        if not containers:
            yield f"{where}: Required value: must be specified"
        for i, container in enumerate(containers):
            if not container.get("image"):
                yield f"{where}[{i}].image: Required value: must be required"
        if CONTAINER not in (container["name"] for container in containers):
            yield f"{where}: Required value: must have at least one container with name {CONTAINER}"
        count = replica.get("replicas")
        if kind == "Master" and count != 1:
            yield f"{path}.replicas: Forbidden: must be 1"
        elif kind != "Master" and count is not None and count < 1:
            yield f"{path}.replicas: Forbidden: must be at least 1"
        # Kubernetes would refuse each pod of it, and the job would wait for ever.
        if policy := replica.get("restartPolicy"):
            yield from _supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)


def _supported(path: str, value: str, allowed: Sequence[str]) -> Iterator[str]:
    if value not in allowed:
        values = ", ".join(json.dumps(item) for item in allowed)
        yield f"{path}: Unsupported value: {json.dumps(value)}: supported values: {values}"
