#!/usr/bin/env python3
"""Write Kubernetes' own definitions of the parts of a pod into the chart's values.schema.json.

    tools/kubernetes_schema.py [--check]

The Go module k8s.io/kubernetes provides them: its OpenAPI document has the types, and the source of the API server has
the allowed words. Each definition takes one line, after the chart's own definitions. With --check, the script writes
nothing, and ends with 1 if the file differs.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULE = "k8s.io/kubernetes@v1.34.4"
SCHEMA = Path(__file__).parent.parent / "charts/torchtally/values.schema.json"
FIRST = '\n    "kubernetes": {"$comment": '  # the definitions follow it, at the end of the schema

CORE = "io.k8s.api.core.v1."
# The definitions that the chart's values refer to.
USED = [
    *(
        CORE + name
        for name in (
            "Affinity", "Container", "EnvFromSource", "EnvVar", "PodResourceClaim", "PodSecurityContext",
            "SecurityContext", "Toleration", "TopologySpreadConstraint", "Volume", "VolumeMount",
        )
    ),
    "io.k8s.api.autoscaling.v2.MetricSpec",
    "io.k8s.api.networking.v1.NetworkPolicyPeer",
]  # fmt: skip

OPERATOR = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement"

Schema = dict[str, Any]

# Forms of strings, and limits of numbers, which the API server's validation has and its OpenAPI document lacks.
# tests/chart/verdicts.py asks an API server what it takes in each field.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL: Schema = {"pattern": f"^{_LABEL}$", "maxLength": 63}
SUBDOMAIN: Schema = {"pattern": f"^{_LABEL}(\\.{_LABEL})*$", "maxLength": 253}
_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
QUALIFIED: Schema = {"pattern": f"^({_LABEL}(\\.{_LABEL})*/)?{_WORD}$"}
LABEL_VALUE: Schema = {"type": ["string", "null"], "pattern": f"^({_WORD})?$"}
_PART = r"([^/.][^/]*|\.|\.[^/.][^/]*|\.\.[^/]+)"  # of a path, but not ..
INSIDE: Schema = {"pattern": f"^({_PART}(/{_PART}?)*)?$"}
VARIABLE: Schema = {"pattern": "^[ !-<>-~]*$"}  # printable ASCII without "="
KEY: Schema = {"pattern": "^([-_a-zA-Z0-9]|\\.[-_a-zA-Z0-9])[-._a-zA-Z0-9]*$", "maxLength": 253}
_SERVICE = "([0-9]+-?)*[a-z](-?[a-z0-9])*"  # has a letter
PORT: Schema = {"minimum": 1, "maximum": 65535}
MODE: Schema = {"minimum": 0, "maximum": 511}
ID: Schema = {"minimum": 0, "maximum": 2147483647}
MEASURE = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"
RESOURCE = f"^(cpu|memory|storage|ephemeral-storage|hugepages-.+|{_LABEL}(\\.{_LABEL})*/{_WORD})$"


def keyed(pattern: str, value: Schema) -> Schema:
    """A map with names of a form. With `propertyNames`, Helm would not say where a wrong one is."""
    return {"type": ["object", "null"], "patternProperties": {pattern: value}, "additionalProperties": False}


FORMS: dict[str, Schema] = {
    field: form
    for fields, form in (
        ("Container.name Volume.name VolumeMount.name PodResourceClaim.name ResourceClaim.name "
         "PodAffinityTerm.namespaces[] ContainerResourceMetricSource.container", LABEL),
        ("ResourceClaim.request", {"pattern": f"^({_LABEL})?$", "maxLength": 63}),
        ("Toleration.key", {"pattern": f"^(({_LABEL}(\\.{_LABEL})*/)?{_WORD})?$"}),
        ("ConfigMapVolumeSource.name SecretVolumeSource.secretName ConfigMapProjection.name SecretProjection.name",
         {"minLength": 1}),
        ("PodResourceClaim.resourceClaimName PodResourceClaim.resourceClaimTemplateName ConfigMapEnvSource.name "
         "SecretEnvSource.name ConfigMapKeySelector.name SecretKeySelector.name", SUBDOMAIN),
        ("EnvVar.name EnvFromSource.prefix", VARIABLE),
        ("ConfigMapKeySelector.key SecretKeySelector.key", KEY),
        ("VolumeMount.subPath VolumeMount.subPathExpr KeyToPath.path DownwardAPIVolumeFile.path "
         "ServiceAccountTokenProjection.path SeccompProfile.localhostProfile", INSIDE),
        ("ContainerPort.containerPort GRPCAction.port", PORT),
        ("ContainerPort.name", {"pattern": f"^({_SERVICE})?$", "maxLength": 15}),
        ("TCPSocketAction.port HTTPGetAction.port", {**PORT, "type": ["integer", "string"],
          "pattern": f"^{_SERVICE}$", "maxLength": 15}),
        ("ConfigMapVolumeSource.defaultMode SecretVolumeSource.defaultMode DownwardAPIVolumeSource.defaultMode "
         "ProjectedVolumeSource.defaultMode KeyToPath.mode DownwardAPIVolumeFile.mode", MODE),
        ("Probe.initialDelaySeconds Probe.periodSeconds Probe.successThreshold Probe.failureThreshold "
         "Probe.timeoutSeconds SleepAction.seconds", {"minimum": 0}),
        ("Probe.terminationGracePeriodSeconds TopologySpreadConstraint.maxSkew TopologySpreadConstraint.minDomains "
         "MetricTarget.averageUtilization", {"minimum": 1}),
        ("PreferredSchedulingTerm.weight WeightedPodAffinityTerm.weight", {"minimum": 1, "maximum": 100}),
        ("SecurityContext.runAsUser SecurityContext.runAsGroup PodSecurityContext.runAsUser"
         " PodSecurityContext.runAsGroup PodSecurityContext.fsGroup PodSecurityContext.supplementalGroups[]", ID),
        ("LabelSelectorRequirement.key NodeSelectorRequirement.key PodAffinityTerm.topologyKey", QUALIFIED),
        ("PodAffinityTerm.matchLabelKeys[] PodAffinityTerm.mismatchLabelKeys[] "
         "TopologySpreadConstraint.matchLabelKeys[]",
         QUALIFIED),
        ("LabelSelector.matchLabels", keyed(QUALIFIED["pattern"], LABEL_VALUE)),
        ("ResourceRequirements.limits ResourceRequirements.requests",
         keyed(RESOURCE, {"$ref": "#/definitions/Quantity"})),
        ("ContainerPort.hostPort", {"minimum": 0, "maximum": 65535}),
        ("VolumeMount.recursiveReadOnly", {"enum": ["Disabled", "Enabled", "IfPossible", "", None]}),
        ("ObjectFieldSelector.apiVersion", {"enum": ["v1", "", None]}),
        ("ObjectFieldSelector.fieldPath", {"pattern":
            r"^(metadata\.(name|namespace|uid|(labels|annotations)(\['.+'\])?)|spec\.(nodeName|serviceAccountName)"
            r"|status\.(hostIP|hostIPs|podIP|podIPs))$"}),
        ("ResourceFieldSelector.resource", {"pattern":
            "^(limits|requests)\\.(cpu|memory|ephemeral-storage|hugepages-.+)$"}),
        ("IPBlock.cidr", {"pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}),
        ("Sysctl.name", {"pattern": "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"}),
        ("NFSVolumeSource.path", {"pattern": "^/"}),
        ("CSIVolumeSource.driver", {"pattern": "^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$", "maxLength": 63}),
        ("HostPathVolumeSource.path", {"pattern": f"^/?{INSIDE['pattern'][1:]}"}),
        ("ServiceAccountTokenProjection.expirationSeconds", {"minimum": 600}),
        ("HTTPHeader.name", {"pattern": "^[-A-Za-z0-9]+$"}),
    )
    for field in fields.split()
}  # fmt: skip
EMPTY: set[str] = {  # required strings that may be empty
    "HTTPHeader.value", "Sysctl.value", "ClusterTrustBundleProjection.path", "PodCertificateProjection.keyType",
    "PodCertificateProjection.signerName", "ContainerRestartRule.action", "ContainerRestartRuleOnExitCodes.operator",
}  # fmt: skip

_ANNOTATIONS = keyed(QUALIFIED["pattern"], {"type": ["string", "null"]})
_LABELS = keyed(QUALIFIED["pattern"], LABEL_VALUE)
# In place of definitions that the document leaves open, or that allow fields which have no effect here.
OTHERWISE: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {
        "type": ["string", "number", "null"],
        "minimum": 0,
        "pattern": MEASURE,
    },
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string", "null"]},
    # Kubernetes reads only these fields in the metadata of a volumeClaimTemplate.
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "type": ["object", "null"],
        "properties": {"annotations": _ANNOTATIONS, "labels": _LABELS},
        "additionalProperties": False,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    try:
        defined = definitions(download(MODULE))
    except FileNotFoundError:
        print("kubernetes_schema: go is not on PATH: install Go", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"kubernetes_schema: go cannot download {MODULE}: {error.stderr or error.stdout}", file=sys.stderr)
        return 2
    lines = [f'"What follows is of {MODULE}, written by tools/kubernetes_schema.py"}}']
    lines += [f"    {json.dumps(name)}: {json.dumps(defined[name], sort_keys=True)}" for name in sorted(defined)]
    before = SCHEMA.read_text()
    after = before.partition(FIRST)[0] + FIRST + ",\n".join(lines) + "\n  }\n}\n"
    if check and after != before:
        print(
            f"kubernetes_schema: {SCHEMA.name} has other definitions than {MODULE}: run `make schema`", file=sys.stderr
        )
        return 1
    if not check:
        SCHEMA.write_text(after)
    return 0


def download(module: str) -> Path:
    command = ["go", "mod", "download", "-json", module]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return Path(json.loads(result.stdout)["Dir"])


def definitions(module: Path) -> dict[str, Schema]:
    """The used definitions, and those that they refer to, by their last name."""
    document = json.loads((module / "api/openapi-spec/swagger.json").read_text())["definitions"]
    words = allowed_words((module / "pkg/generated/openapi/zz_generated.openapi.go").read_text())
    found: dict[str, Schema] = {}
    missing = [*USED]
    while missing:
        name = missing.pop()
        if _last(name) not in found:
            found[_last(name)] = _definition(name, document[name], words)
            missing += [] if name in OTHERWISE else _references(document[name])
    source = {key: part for key, part in found["Volume"]["properties"].items() if key != "name"}
    found["VolumeSource"] = {"type": ["object", "null"], "properties": source, "additionalProperties": False}
    return found


def _definition(name: str, source: Schema, words: dict[tuple[str, str], list[str]]) -> Schema:
    if name in OTHERWISE:
        return OTHERWISE[name]
    required = set(source.get("required", []))
    properties = {
        key: _formed(f"{_last(name)}.{key}", _part(part, key in required, words.get((name, key), [])), key in required)
        for key, part in source["properties"].items()
    }
    # An unknown field is a mistake, which an API server drops silently.
    found = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    return {**found, "required": sorted(required)} if required else found


def _formed(field: str, part: Schema, required: bool) -> Schema:
    """The schema of a field with the form that it must have."""
    form = FORMS.get(field, {})
    found = form if "$ref" in part and form else part | form  # what stands beside a $ref has no effect
    if f"{field}[]" in FORMS:
        found["items"] = part["items"] | FORMS[f"{field}[]"]
    return {"minLength": 1, **found} if required and part.get("type") == "string" and field not in EMPTY else found


def _part(source: Schema, required: bool, words: list[str]) -> Schema:
    """The schema of a field. As in Kubernetes, null and an empty word leave it out, unless it is required."""
    if "$ref" in source:
        return _reference(source)
    kind = source["type"]
    part: Schema = {"type": kind if required else [kind, "null"]}
    if source.get("format") == "int32":
        part["maximum"] = 2**31 - 1
    if "items" in source:
        part["items"] = _part(source["items"], True, words)
    elif "additionalProperties" in source:
        part["additionalProperties"] = _part(source["additionalProperties"], False, [])
    elif words:
        part = {"enum": words if required else [*words, *{""}.difference(words), None]}
    return part


def _reference(source: Schema) -> Schema:
    return {"$ref": f"#/definitions/{_last(source['$ref'])}"}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _references(source: Any) -> list[str]:
    """The names of the definitions that a part of the document refers to."""
    if isinstance(source, list):
        return [name for each in source for name in _references(each)]
    if isinstance(source, dict):
        own = [source["$ref"].rpartition("/")[2]] if isinstance(source.get("$ref"), str) else []
        return [*own, *(name for each in source.values() for name in _references(each))]
    return []


def allowed_words(source: str) -> dict[tuple[str, str], list[str]]:
    """The allowed words by definition and field, from Go's source of all definitions."""
    found = {(OPERATOR, "operator"): ["DoesNotExist", "Exists", "In", "NotIn"]}  # only in a description of the source
    for function in source.split("\nfunc schema_k8sio_api_")[1:]:
        name = "io.k8s.api." + function[: function.index("(")].replace("_", ".")
        field = ""
        for line in function.splitlines():
            if match := re.fullmatch(r'\t{5}"(\w+)": \{', line):
                field = match[1]
            elif match := re.fullmatch(r"\t+Enum: +\[\]interface\{\}\{(.*)\},", line):
                found[name, field] = json.loads(f"[{match[1]}]")
    return found


if __name__ == "__main__":
    sys.exit(main())
