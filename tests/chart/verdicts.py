"""What an API server says of values: the legal and the illegal ones of each field that the chart passes on.

    kubectl proxy --port 8011 & python tests/chart/verdicts.py http://127.0.0.1:8011

writes verdicts.json.xz anew, from dry runs that create nothing. Each string, number, and name in the chart's schema
takes values of many forms, in an object that has the field and what its definition requires beside it.
"""

import copy
import http.client
import json
import lzma
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
Build = Callable[[Any], Any]

FILE = Path(__file__).with_name("verdicts.json.xz")
CHART = Path(__file__).parents[2] / "charts/torchtally"

STRINGS = [
    "a", "1a", "a.b", "a_b", "A", "a/b", "example.com/a", "a=b", "a b", "a:1", "-a", "a..b", "/a", "a/../b", "..", "/",
    "", "$(A)", "ä", "0", "1Gi", "http", "10.0.0.0/8", "10.0.0.1", "a" * 16, "a" * 64, "a" * 254, "CAP_A", "limits.cpu",
    "metadata.name", "RuntimeDefault", "v1",
]  # fmt: skip
NUMBERS = [-1, 0, 1, 100, 511, 512, 65535, 65536, 2**31]


def kept() -> list[tuple[str, Any, bool]]:
    """The name of a chart's value, what it is set to, and whether the API server takes it."""
    found: list[tuple[str, Any, bool]] = json.loads(lzma.decompress(FILE.read_bytes()))
    return found


def chart_schema() -> Schema:
    found: Schema = json.loads((CHART / "values.schema.json").read_text())
    return found


# Where a value of the chart goes, in a pod template unless another kind is named.
def _pod(**spec: Any) -> tuple[str, dict[str, Any]]:
    return _template({}, spec)


def _template(metadata: dict[str, Any], spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    pod = {"containers": [{"name": "main", "image": "a"}], **spec}
    return "/api/v1/namespaces/default/podtemplates", {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "a"},
        "template": {"metadata": {"labels": {"app": "a"}, **metadata}, "spec": pod},
    }


def _container(volumes: list[Any] | None = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    return _pod(containers=[{"name": "main", "image": "a", **fields}], volumes=volumes or [])


def _claim(metadata: dict[str, Any], **spec: Any) -> tuple[str, dict[str, Any]]:
    full = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return "/api/v1/namespaces/default/persistentvolumeclaims", {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a", **metadata}, "spec": full,
    }  # fmt: skip


def _policy(peers: list[Any]) -> tuple[str, dict[str, Any]]:
    return "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
        "spec": {"podSelector": {}, "ingress": [{"from": peers}]},
    }  # fmt: skip


def _autoscaler(metrics: list[Any]) -> tuple[str, dict[str, Any]]:
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "a"}
    return "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 2, "metrics": metrics},
    }  # fmt: skip


def _volumes_of(containers: list[Any]) -> list[Any]:
    names = {mount.get("name") for each in containers for mount in each.get("volumeMounts", [])}
    return [{"name": name, "emptyDir": {}} for name in names if name]


def _claims_of(containers: list[Any]) -> list[Any]:
    names = {claim.get("name") for each in containers for claim in each.get("resources", {}).get("claims", [])}
    return [{"name": name, "resourceClaimName": "a"} for name in names if name]


def _beside(containers: list[Any]) -> tuple[str, dict[str, Any]]:
    given = [{"restartPolicy": "Always", **each} for each in containers]
    return _pod(initContainers=given, volumes=_volumes_of(given), resourceClaims=_claims_of(given))


PLACES: dict[str, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    "env": lambda value: _container(env=value),
    "envFrom": lambda value: _container(envFrom=value),
    "ports": lambda value: _container(ports=value),
    "volumeMounts": lambda value: _container(_volumes_of([{"volumeMounts": value}]), volumeMounts=value),
    "workingDir": lambda value: _container(workingDir=value),
    "securityContext": lambda value: _container(securityContext=value),
    "volumes": lambda value: _pod(volumes=value),
    "sidecars": lambda value: _beside(value),
    "resourceClaims": lambda value: _pod(resourceClaims=value),
    "tolerations": lambda value: _pod(tolerations=value),
    "affinity": lambda value: _pod(affinity=value),
    "topologySpreadConstraints": lambda value: _pod(topologySpreadConstraints=value),
    "podSecurityContext": lambda value: _pod(securityContext=value),
    "nodeSelector": lambda value: _pod(nodeSelector=value),
    "priorityClassName": lambda value: _pod(priorityClassName=value),
    "runtimeClassName": lambda value: _pod(**({"runtimeClassName": value} if value else {})),
    "schedulerName": lambda value: _pod(schedulerName=value),
    "terminationGracePeriodSeconds": lambda value: _pod(terminationGracePeriodSeconds=value),
    "podLabels": lambda value: _template({"labels": value}, {}),
    "podAnnotations": lambda value: _template({"annotations": value}, {}),
    "labels": lambda value: _template({"labels": value}, {}),
    "annotations": lambda value: _template({"annotations": value}, {}),
    "commonLabels": lambda value: _template({"labels": value}, {}),
    "metrics.podMonitorLabels": lambda value: _template({"labels": value}, {}),
    "serviceAccount.annotations": lambda value: _template({"annotations": value}, {}),
    "serviceAccount.name": lambda value: _pod(serviceAccountName=value),
    "image.pullSecrets": lambda value: _pod(imagePullSecrets=value),
    "resources.requests": lambda value: _container(resources={"requests": value, "limits": value}),
    "resources.limits": lambda value: _container(resources={"limits": value}),
    "shmSize": lambda value: _pod(volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": value}}]),
    "model.existingClaim": lambda value: _pod(
        volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": value}}] if value else []
    ),
    "model.storageClass": lambda value: _claim({}, **({"storageClassName": value} if value else {})),
    "model.annotations": lambda value: _claim({"annotations": value}),
    "model.dataSource": lambda value: _claim({}, dataSource=value),
    "model.size": lambda value: _claim({}, resources={"requests": {"storage": value}}),
    "networkPolicy.from": _policy,
    "elasticPolicy.metrics": _autoscaler,
}

# What a field takes where its definition does not say more.
PLAIN = {
    "mountPath": "/a",
    "operator": "In",
    "topologyKey": "a",
    "whenUnsatisfiable": "DoNotSchedule",
    "type": "Resource",
}
PLAIN |= {
    "cidr": "10.0.0.0/8",
    "divisor": "1",
    "resource": "limits.cpu",
    "fieldPath": "metadata.name",
    "apiVersion": "v1",
}
NEEDED: dict[str, list[Schema]] = {  # by definition: what it needs beside a field, the first that an API server takes
    "EnvFromSource": [{"configMapRef": {"name": "a"}}],
    "LabelSelectorRequirement": [{"values": ["a"]}],
    "NodeSelectorRequirement": [{"values": ["a"]}, {"operator": "Gt"}],
    "PodResourceClaim": [{"resourceClaimName": "a"}, {"resourceClaimTemplateName": "a"}],
    "NodeSelectorTerm": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
    "PodAffinityTerm": [{"labelSelector": {"matchLabels": {"a": "b"}}}],
    "TopologySpreadConstraint": [{"labelSelector": {"matchLabels": {"a": "b"}}}],
    "Toleration": [
        {"operator": "Exists"},
        {"operator": "Equal", "key": "a"},
        {"effect": "NoExecute", "key": "a", "operator": "Exists"},
    ],
    "Container": [{"image": "a"}, {"image": "a", "ports": [{"containerPort": 1, "name": "a"}]}],
    "Probe": [{"exec": {"command": ["a"]}}],
    "ImageVolumeSource": [{"reference": "a"}],
    "SeccompProfile": [{"type": "Localhost"}],
    "AppArmorProfile": [{"type": "Localhost"}],
    "CSIVolumeSource": [{"driver": "a"}],
    "ClusterTrustBundleProjection": [{"name": "a", "path": "a"}, {"signerName": "example.com/a", "path": "a"}],
    "VolumeProjection": [{"secret": {"name": "a"}}],
    "DownwardAPIVolumeFile": [
        {"fieldRef": {"fieldPath": "metadata.name"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "main"}},
    ],
    "PersistentVolumeClaimSpec": [{"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}],
    "EphemeralVolumeSource": [
        {
            "volumeClaimTemplate": {
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            }
        }
    ],
    "MetricTarget": [
        {"type": "AverageValue", "averageValue": "1"},
        {"type": "Utilization"},
        {"type": "Value", "value": "1"},
    ],
    "MetricSpec": [{"type": name} for name in ("Resource", "Pods", "Object", "External", "ContainerResource")],
    "ResourceFieldSelector": [{"containerName": "main"}],
    "ConfigMapKeySelector": [{"name": "a"}],
    "SecretKeySelector": [{"name": "a"}],
    "FCVolumeSource": [{"targetWWNs": ["a"], "lun": 1}, {"wwids": ["a"]}],
    "SecretVolumeSource": [{"secretName": "a"}],
    "ISCSIVolumeSource": [{"chapAuthSession": True, "secretRef": {"name": "a"}}],
    "FlockerVolumeSource": [{"datasetName": "a"}],
    "IPBlock": [{"cidr": "10.0.0.0/8"}],
    "HPAScalingRules": [{}],
}


def leaves(schema: Schema, root: Schema, where: str) -> Iterator[tuple[str, list[Any], list[Build]]]:
    """Each string, number and name in it by its definition and field, what to try, and ways to build all of it."""
    name = ""
    while "$ref" in schema or "allOf" in schema:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = root["definitions"][name] if "definitions" in schema["$ref"] else root["properties"][name]
        else:
            schema = schema["allOf"][0]
    if "enum" in schema:
        return
    where = name if "properties" in schema and name else where
    kinds = schema.get("type", [])
    if "object" in kinds:
        for key, part in schema.get("properties", {}).items():
            for path, tried, builds in leaves(part, root, f"{where}.{key}"):
                yield path, tried, _around(name, schema, key, builds, root)
        extra = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        if extra:
            for path, tried, builds in leaves(extra, root, f"{where}.*"):
                yield path, tried, [lambda value, build=build: {"memory": build(value)} for build in builds]
            plain = "1" if extra.get("$ref", "").lower().endswith("quantity") else "a"
            yield f"{where}.key", STRINGS, [lambda value: {value: plain}]
    elif "array" in kinds:
        for path, tried, builds in leaves(schema["items"], root, f"{where}[]"):
            yield path, tried, [lambda value, build=build: [build(value)] for build in builds]
    elif "integer" in kinds or "number" in kinds or "string" in kinds:
        numbers = "integer" in kinds or "number" in kinds
        yield where, [*(STRINGS if "string" in kinds else []), *(NUMBERS if numbers else [])], [lambda value: value]


def _around(name: str, schema: Schema, key: str, builds: list[Build], root: Schema) -> list[Build]:
    required = {
        each: minimal(schema["properties"][each], root, each) for each in schema.get("required", []) if each != key
    }

    def around(value: Any, build: Build, needed: Schema) -> Any:
        return {**copy.deepcopy(required), **copy.deepcopy(needed), key: build(value)}

    return [
        lambda value, build=build, needed=needed: around(value, build, needed)
        for build in builds
        for needed in ({}, *NEEDED.get(name, []))
    ]


def minimal(schema: Schema, root: Schema, key: str) -> Any:
    name = ""
    while "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = root["definitions"][name]
    if "enum" in schema:
        return PLAIN[key] if PLAIN.get(key) in schema["enum"] else schema["enum"][0]
    kinds = schema.get("type", [])
    if "object" in kinds:
        own = {each: minimal(schema["properties"][each], root, each) for each in schema.get("required", [])}
        return {**copy.deepcopy(NEEDED.get(name, [{}])[0]), **own} if schema.get("properties") else {}
    if "array" in kinds:
        return [minimal(schema["items"], root, key)]
    if "integer" in kinds:
        return 1
    return PLAIN.get(key, "a") if "string" in kinds else True


def main(server: str) -> None:
    root = chart_schema()
    address = urllib.parse.urlsplit(server).netloc
    connection = http.client.HTTPConnection(address)
    done: set[str] = set()
    unseen: set[str] = set()
    found: dict[str, tuple[str, Any, bool]] = {}

    def takes(place: str, value: Any) -> bool:
        path, manifest = PLACES[place](value)
        body = json.dumps(manifest)
        if connection.sock is None:
            connection.connect()
            assert connection.sock
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request(
            "POST", f"{path}?dryRun=All&fieldValidation=Strict", body, {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        text = response.read()
        if response.status not in (200, 201, 400, 422):
            raise SystemExit(f"{response.status} {text.decode()}")
        return response.status < 300

    for place in PLACES:
        part = root
        for name in place.split("."):
            part = part["properties"][name]
        for where, tried, builds in leaves(part, root, place):
            if where in done:
                continue
            for build in builds:
                verdicts = {}
                for each in tried:
                    value = build(each)
                    verdicts[json.dumps([place, value])] = (place, value, takes(place, value))
                    if len(verdicts) == 6 and not any(taken for *_, taken in verdicts.values()) and len(builds) > 8:
                        break
                if any(taken for *_, taken in verdicts.values()):
                    found |= verdicts
                    done.add(where)
                    break
            else:
                unseen.add(where)
        FILE.write_bytes(lzma.compress(json.dumps(list(found.values()), sort_keys=True).encode(), preset=9))
    print(*(f"no value of {where} is taken" for where in sorted(unseen - done)), sep="\n", file=sys.stderr)
    print(
        f"{len(found)} values, {sum(taken for *_, taken in found.values())} of them legal, {FILE.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main(sys.argv[1])
