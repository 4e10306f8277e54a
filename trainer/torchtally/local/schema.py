"""What the API server would refuse before the operator sees it: wrong types, fields that do not exist.

The job's own fields are few and stand here; a pod template is Kubernetes' own type, which its client describes. Of what
stands around a job, only the fields that are read here are known.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes import client

# A shape is the name of a type as Kubernetes' client writes it, or the fields of an object.
Shape = str | Mapping[str, "Shape"]
_MORE = "*"  # among the fields of an object: others are taken as well
_ANY: Mapping[str, Shape] = {_MORE: "object"}

_QUANTITY = re.compile(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_HOLDS_QUANTITY = re.compile(r"\.(limits|requests|minResources|overhead)\.[^\[]+$|\.(sizeLimit|divisor)$")
_JOB: Shape = {
    "apiVersion": "str",
    "kind": "str",
    "metadata": "V1ObjectMeta",
    "status": "object",
    "spec": {
        "nprocPerNode": "str",
        "pytorchReplicaSpecs": "Dict[str, ReplicaSpec]",
        "elasticPolicy": {
            "minReplicas": "int",
            "maxReplicas": "int",
            "rdzvBackend": "str",
            "rdzvPort": "int",
            "rdzvHost": "str",
            "rdzvId": "str",
            "rdzvConf": "List[RDZVConf]",
            "standalone": "bool",
            "nProcPerNode": "int",
            "maxRestarts": "int",
            "metrics": "object",
        },
        "runPolicy": {
            "activeDeadlineSeconds": "int",
            "backoffLimit": "int",
            "cleanPodPolicy": "str",
            "managedBy": "str",
            "suspend": "bool",
            "ttlSecondsAfterFinished": "int",
            "schedulingPolicy": {
                "minAvailable": "int",
                "queue": "str",
                "minResources": "Dict[str, str]",
                "priorityClass": "str",
                "scheduleTimeoutSeconds": "int",
            },
        },
    },
}
_TRAIN_JOB: Shape = {
    "apiVersion": "str",
    "kind": "str",
    "metadata": "V1ObjectMeta",
    "status": "object",
    "spec": {
        "runtimeRef": {"apiGroup": "str", "kind": "str", "name": "str"},
        "trainer": {
            "image": "str",
            "command": "List[str]",
            "args": "List[str]",
            "env": "List[V1EnvVar]",
            "numNodes": "int",
            "numProcPerNode": "object",  # a number or a text
            "resourcesPerNode": "V1ResourceRequirements",
        },
        "initializer": "object",
        "labels": "Dict[str, str]",
        "annotations": "Dict[str, str]",
        "podTemplateOverrides": "List[PodTemplateOverride]",
        "runtimePatches": "List[RuntimePatch]",
        "suspend": "bool",
        "managedBy": "str",
        "activeDeadlineSeconds": "int",
        "ttlSecondsAfterFinished": "int",
    },
}
_REPLICATED: Mapping[str, Shape] = {
    "template": {"spec": {"replicatedJobs": "List[ReplicatedJob]", **_ANY}, **_ANY},
    **_ANY,
}
_AROUND: Mapping[str, Shape] = {  # objects in which a job is, or that it names, by their kind
    "TrainingRuntime": {"spec": {"mlPolicy": {"numNodes": "int", "torch": _ANY, **_ANY}, **_REPLICATED}, **_ANY},
    "AppWrapper": {
        "spec": {"components": "List[Item]", "resources": {"GenericItems": "List[Item]", **_ANY}, **_ANY},
        **_ANY,
    },
    "Trial": {"spec": _ANY, **_ANY},
    "Experiment": {
        "metadata": _ANY,
        "spec": {
            "parameters": "List[Parameter]",
            "trialTemplate": {"trialParameters": "List[Item]", "trialSpec": {"metadata": _ANY, **_ANY}, **_ANY},
            **_ANY,
        },
        **_ANY,
    },
}
_OWN: Mapping[str, Shape] = {
    "Item": _ANY,
    "Named": {"name": "str", **_ANY},
    "Parameter": {"name": "str", "feasibleSpace": {"list": "List[object]", **_ANY}, **_ANY},
    "ReplicatedJob": {
        "name": "str",
        "template": {
            "spec": {
                "backoffLimit": "int",
                "podFailurePolicy": {"rules": "List[Item]", **_ANY},
                "template": {"spec": {"containers": "List[Named]", **_ANY}, **_ANY},
                **_ANY,
            },
            **_ANY,
        },
        **_ANY,
    },
    "RuntimePatch": {"trainingRuntimeSpec": _REPLICATED, **_ANY},
    "PodTemplateOverride": {"targetJobs": "List[Named]", "metadata": _ANY, "spec": _ANY},
    "ReplicaSpec": {"replicas": "int", "restartPolicy": "str", "template": "V1PodTemplateSpec"},
    "RDZVConf": {"key": "str", "value": "str"},
}
# Fields that name an item of a list, by the list's own type: the CRD's x-kubernetes-list-map-keys.
_KEYS = {
    "V1Container": ("name",),
    "V1ContainerPort": ("containerPort", "protocol"),
    "V1EnvVar": ("name",),
    "V1EphemeralContainer": ("name",),
    "V1HostAlias": ("ip",),
    "V1LocalObjectReference": ("name",),
    "V1PodResourceClaim": ("name",),
    "V1PodSchedulingGate": ("name",),
    "V1TopologySpreadConstraint": ("topologyKey", "whenUnsatisfiable"),
    "V1Volume": ("name",),
    "V1VolumeDevice": ("devicePath",),
    "V1VolumeMount": ("mountPath",),
}
_DEFAULTS = {"protocol": "TCP"}
_TYPES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "datetime": "string"}


def errors(job: Mapping[str, Any]) -> Iterator[str]:
    """What the API server would say of this PyTorchJob."""
    if not (isinstance(job.get("metadata"), dict) and job["metadata"].get("name")):
        yield "metadata.name: Required value: name or generateName is required"
    if "spec" not in job:
        yield "spec.pytorchReplicaSpecs: Required value: must be required"
    elif isinstance(job["spec"], dict) and "pytorchReplicaSpecs" not in job["spec"]:
        yield "spec.pytorchReplicaSpecs: Required value"
    yield from _errors(job, _JOB, "")


def train_job_errors(job: Mapping[str, Any]) -> Iterator[str]:
    """What the API server would say of this TrainJob."""
    found = [*_errors(job, _TRAIN_JOB, "")]
    yield from found or _missing(job, ("metadata", "name"), ("spec", "runtimeRef", "name"))


def runtime_errors(runtime: Mapping[str, Any]) -> Iterator[str]:
    """What it would say of a runtime of TrainJobs."""
    found = [*_errors(runtime, _AROUND["TrainingRuntime"], "")]
    yield from found or _missing(runtime, ("spec", "template", "spec", "replicatedJobs"))


def wrapper_errors(document: Mapping[str, Any]) -> Iterator[str]:
    """What it would say of an object that wraps a job; nothing of any other."""
    return _errors(document, _AROUND.get(str(document.get("kind")), _ANY), "")


def _missing(document: Mapping[str, Any], *paths: tuple[str, ...]) -> Iterator[str]:
    """What an object of the right shape lacks."""
    for path in paths:
        value: Any = document
        for name in path:
            value = value.get(name) or {}
        if not value:
            yield f"{'.'.join(path)}: Required value"


def template_errors(template: Any) -> Iterator[str]:
    """What it would say of a pod template."""
    return _errors(template, "V1PodTemplateSpec", "template")


def json_type(value: Any) -> str:
    """The type of a value in JSON's words."""
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


def _errors(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, str) and shape != "object":
        if inner := re.fullmatch(r"[Ll]ist\[(.+)\]", shape):
            yield from _of_type(value, "array", path)
            for i, item in enumerate(value if isinstance(value, list) else ()):
                yield from _errors(item, inner[1], f"{path}[{i}]")
            yield from _duplicates(value, _KEYS.get(inner[1], ()), path)
        elif inner := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", shape):
            yield from _of_type(value, "object", path)
            for key, item in value.items() if isinstance(value, dict) else ():
                yield from _errors(item, inner[1], f"{path}.{key}")
        elif shape in _TYPES:
            yield from _of_type(value, _TYPES[shape], path)
        elif shape in _OWN:
            yield from _errors(value, _OWN[shape], path)
        else:
            model = getattr(client, shape)
            yield from _errors(
                value, {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}, path
            )
            required = [model.attribute_map[name] for name, about in model.model_fields.items() if about.is_required()]
            yield from (
                f"{path}.{name}: Required value" for name in required if isinstance(value, dict) and name not in value
            )
    elif isinstance(shape, Mapping):
        yield from _of_type(value, "object", path)
        for key, item in value.items() if isinstance(value, dict) else ():
            field = f"{path}.{key}" if path else str(key)
            if key not in shape and _MORE in shape:
                continue
            if key not in shape:
                yield f'strict decoding error: unknown field "{field}"'
            else:
                yield from _errors(item, shape[key], field)


def _duplicates(value: Any, keys: tuple[str, ...], path: str) -> Iterator[str]:
    known = []
    for i, item in enumerate(value if isinstance(value, list) and keys else ()):
        if isinstance(item, dict):
            named = {key: item.get(key, _DEFAULTS.get(key, "")) for key in keys}
            if named in known:
                where = re.sub(r"^spec\.pytorchReplicaSpecs\.(\w+)", r"spec.pytorchReplicaSpecs[\1]", path)
                yield f"{where}[{i}]: Duplicate value: {json.dumps(named, separators=(',', ':'))}"
            known.append(named)


def _of_type(value: Any, wanted: str, path: str) -> Iterator[str]:
    found = json_type(value)
    where = path or "the document"
    if _HOLDS_QUANTITY.search(path):
        if found not in ("string", "integer"):
            yield f'{where}: Invalid value: "{found}": {where} in body must be of type integer,string: "{found}"'
        elif not _QUANTITY.match(str(value)):
            yield f"{where}: Invalid value: \"{value}\": {where} in body should match '{_QUANTITY.pattern}'"
    elif found != wanted and not (wanted == "number" and found == "integer"):
        yield f'{where}: Invalid value: "{found}": {where} in body must be of type {wanted}: "{found}"'


def base64_text(value: Any) -> str:
    """A Secret's value; one that is no text in base64 stays out of the way, as an empty one."""
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
