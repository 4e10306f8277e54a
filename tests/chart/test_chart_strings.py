"""A string value is in the manifests exactly where its default would be, or the schema refuses it in a sentence."""

import functools
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Helm = Callable[..., subprocess.CompletedProcess[str]]
Schema = dict[str, Any]

CHART = Path(__file__).parents[2] / "charts/torchtally"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())

# What is no plain string: a name of objects, templates, what other charts read, and what the chart sets itself.
NOT_PLAIN = {"fullnameOverride", "model.subPath", "extraObjects", "global", "enabled", "sidecars.restartPolicy"}
# Two sources of a volume, or a program of one type of pod beside a task.
NOT_PLAIN |= {"master.command", "master.args", "worker.command", "worker.args", "args"}
PYTORCHJOB = {"elasticPolicy", "master", "worker", "schedulingPolicy"}
# One kind of job has them all, because the pods of each kind come from one template.
LARGE = {"affinity", "initContainers", "sidecars", "volumeMounts", "volumes"}
# What a TrainJob cannot pass to an existing runtime.
UNPATCHABLE = {"envFrom", "priorityClassName", "runtimeClassName", "schedulerName"}
UNPATCHABLE |= {"metrics", "ports", "workingDir", "resourceClaims", "topologySpreadConstraints"}
# A claim has one source.
TEMPLATE, CLAIM = "resourceClaims.resourceClaimTemplateName", "resourceClaims.resourceClaimName"
# What a claim of the chart's own has.
NEW_CLAIM = {"model.storageClass", "model.annotations", "model.dataSource"}
# Jobs that together take all values: what each leaves out, and what it needs.
JOBS: dict[str, tuple[set[str], dict[str, Any]]] = {
    "pytorchjob": (
        {
            "command",
            "runtime",
            "elasticPolicy",
            "worker",
            "model.existingClaim",
            TEMPLATE,
            *(f"master.{each}" for each in LARGE),
        },
        {},
    ),
    "elastic": (LARGE | {"runtime", "master", "worker", CLAIM} | NEW_CLAIM, {"task": ""}),
    "trainjob": (PYTORCHJOB | LARGE | {"runtime", CLAIM} | NEW_CLAIM, {"api": "trainjob", "task": ""}),
    "runtime": (PYTORCHJOB | LARGE | UNPATCHABLE | {"command"} | NEW_CLAIM, {"api": "trainjob"}),
}
# Strings of a form that no marker has, which other fields need.
FORMED = {"cidr": "10.0.0.0/8", "resource": "limits.cpu", "path": "/a", "fieldPath": "metadata.name"}
# Strings that YAML, Helm or Go could take for something else.
SPECIAL = [
    "on", "no", "true", "null", "~", "123", "-1", "1e3", "0x1f", "1_000", "012", "1.0", ".inf", "2001-01-01",
    "12:30:45", "a\n  hostPID: true", "a\n\n", "\n a", "a\n---\nkind: Pod", "a #b", "#a", "a: b", "a:", "- a", "? a",
    "{a: b}", "[a]", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "'", '"', '"a"', "a'b", "a\\nb", "\\",
    "{{ .Release.Name }}", "{{ fail `a` }}", "{{", "}}", "{{/*", "$a", "$(A)", "%s", "<a&b>", " a ", "a\tb", "ä€😀",
    "\u200b", "\u2028", "\ufeffa",
]  # fmt: skip
# Without commas, which separate network interfaces, and what PyYAML alone takes for more than a string.
CHARACTERS = st.characters(exclude_categories=("C",), include_characters="\n\t", exclude_characters=",")
TEXT = st.text(CHARACTERS, min_size=1, max_size=20).filter(lambda text: text not in ("=", "<<"))
INJECTED = "a\n  hostPID: true"
MARKER = "[xX][0-9vV]+[xX]"


def example(schema: Schema, without: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values that set every string of the schema, and every name in a map, to a marker of its own: `x1x`, `X2X`, …

    Also returns the patterns that strings have to match, by their marker.
    """
    count = 0
    patterns = {}

    def marker() -> str:
        nonlocal count
        count += 1
        return f"x{count}x"

    def resolved(part: Schema) -> Schema:
        while "$ref" in part:
            part = functools.reduce(lambda found, step: found[step], part["$ref"].split("/")[1:], schema)
        return functools.reduce(lambda all, each: {**resolved(each), **all}, part.get("allOf", []), part)

    def of(part: Schema, name: str) -> Any:
        """An example of this part; None if it holds no string."""
        part = resolved(part)
        kinds = part.get("type", [])
        if name in without or "enum" in part:
            return None
        if "object" in kinds:
            return of_object(part, name)
        if "array" in kinds:
            item = of(part.get("items", {}), name)
            return None if item is None else separate(item)
        if "string" not in kinds:
            return None
        # A mount names its volume.
        found = "xvx" if re.search(r"olume(Mount)?s\.name$", name) else marker()
        pattern = part.get("pattern", "")
        if pattern:
            patterns[found] = pattern
        return found if re.search(pattern, found) else None

    def of_object(part: Schema, name: str) -> Any:
        found = {key: of(each, f"{name}.{key}".lstrip(".")) for key, each in part.get("properties", {}).items()}
        if name:
            lacks = [
                key for key in part.get("required", []) if found[key] is None and key not in (DEFAULTS.get(name) or ())
            ]
            found |= {key: needed(part["properties"][key], key) for key in lacks}
        names = {**part.get("patternProperties", {}), "": part.get("additionalProperties") or {}}
        for pattern, each in names.items():
            key = marker().upper()
            if re.search(pattern, key):
                found[key] = of(each, f"{name}.*")
                patterns.update({key: pattern} if pattern else {})
        found = {key: each for key, each in found.items() if each is not None}
        return {"csi": found["csi"]} if {"csi", "nfs"} <= found.keys() and "name" not in found else found or None

    def separate(item: Any) -> list[Any]:
        """A volume of each kind, because a volume has one. The first has the name that mounts have."""
        if not isinstance(item, dict) or not {"csi", "nfs"} <= item.keys():
            return [item]
        kinds = [kind for kind in item if kind != "name"]
        names = [item["name"], *map(str.lower, kinds[1:])]
        return [{"name": name, kind: item[kind]} for name, kind in zip(names, kinds, strict=True)]

    def needed(part: Schema, name: str) -> Any:
        part = resolved(part)
        return part["enum"][0] if "enum" in part else 1 if "integer" in part.get("type", []) else FORMED.get(name)

    values: dict[str, Any] = of(schema, "")
    used = {marker for _, marker in pointers(values)}
    return values, {marker: pattern for marker, pattern in patterns.items() if marker in used}


def substituted(value: Any, strings: dict[str, str]) -> Any:
    """With the strings in place of their markers, in keys as well."""
    if isinstance(value, dict):
        return {substituted(key, strings): substituted(each, strings) for key, each in value.items()}
    if isinstance(value, list):
        return [substituted(each, strings) for each in value]
    if not isinstance(value, str):
        return value
    return re.sub(MARKER, lambda found: strings.get(found[0], found[0]), value)


def pointers(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """The markers, by the place that Helm names where the schema refuses a value."""
    if isinstance(value, str):
        for found in re.findall(MARKER, value):
            yield at, found
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from pointers(key, at)
            yield from pointers(each, f"{at}/{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from pointers(each, f"{at}/{number}")


def differences(got: Any, wanted: Any, at: str = "") -> Iterator[str]:
    if isinstance(got, dict) and isinstance(wanted, dict) and got.keys() == wanted.keys():
        for key in got:
            yield from differences(got[key], wanted[key], f"{at}/{key}")
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        for number, pair in enumerate(zip(got, wanted, strict=True)):
            yield from differences(*pair, f"{at}/{number}")
    elif got != wanted or type(got) is not type(wanted):
        yield f"{at}: {got!r}, not {wanted!r}"


def rendered(helm: Helm, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    monitors = ("--api-versions=monitoring.coreos.com/v1/PodMonitor", f"--set=metrics.enabled={'metrics' in values}")
    given = (f"--set-json={name}={json.dumps(value)}" for name, value in values.items())
    return helm("template", "demo", str(CHART), *given, *monitors)


def parsed(text: str) -> list[Any]:
    """The manifests, without the hashes of what they contain; JSON in them is what it says."""
    text = re.sub("[0-9a-f]{64}|(?<=-files-)[0-9a-f]{8}|(?<=-verify-)[0-9a-f]{8}", "", text)
    manifests = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    for annotations in (each["metadata"].get("annotations") or {} for each in manifests):
        if reader := annotations.get("torchtally/reader"):
            annotations["torchtally/reader"] = json.loads(reader)
    for data in (each["data"] for each in manifests if "spec" in (each.get("data") or {})):
        data["spec"] = json.loads(data["spec"])
    return manifests


@pytest.mark.parametrize("job", JOBS)
def test_every_string_arrives_as_it_is_or_is_refused(helm: Helm, job: str) -> None:
    without, others = JOBS[job]
    values, patterns = example(SCHEMA, without | NOT_PLAIN)
    values |= others
    marked = rendered(helm, values)
    assert marked.returncode == 0, marked.stderr
    manifests = parsed(marked.stdout)
    arrived = {marker for _, marker in pointers(manifests)}
    assert [place for place, marker in pointers(values) if marker not in arrived] == []

    # For Python alone, $ also matches in front of a newline at the end.
    narrow = {marker: pattern.replace("$", r"\Z") for marker, pattern in patterns.items()}
    wrong = {marker: INJECTED for marker, pattern in narrow.items() if not re.search(pattern, INJECTED)}
    refused = rendered(helm, substituted(values, wrong)).stderr
    # Below a name that is refused, nothing else is looked at.
    below = {place for place, _ in pointers(values) if {*re.findall(MARKER, place)} & {*wrong}}
    places = [place for place, marker in pointers(values) if marker in wrong and place not in below]
    assert len(places) > 5
    assert [place for place in places if f"at '{place}'" not in refused] == []

    def arrive(strings: dict[str, str]) -> None:
        strings = {marker: string for marker, string in strings.items() if re.search(narrow.get(marker, ""), string)}
        result = rendered(helm, substituted(values, strings))
        assert result.returncode == 0, result.stderr
        assert list(differences(parsed(result.stdout), substituted(manifests, strings))) == []

    @settings(max_examples=4, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(st.permutations(SPECIAL), st.lists(TEXT, min_size=20, max_size=20))
    def check(special: list[str], texts: list[str]) -> None:
        arrive(dict(zip(sorted(arrived), itertools.cycle([*special, *texts]), strict=False)))

    check()
    # YAML that is parsed and printed on the way loses a newline at its end, wherever that is.
    arrive({marker: "a\n\n" for marker in arrived if not marker.isupper()})


# Of so narrow a form that no marker has it.
NARROW = {
    "image": {"digest": f"sha256:{'0' * 64}"},
    "nprocPerNode": "2",
    "resources": {"gpuResourceName": "example.com/gpu", "cpu": "1", "limits": {"rdma/hca": "1"}},
    "shmSize": "1",
    "model": {"size": "1"},
}


def test_a_string_of_a_narrow_form_takes_nothing_behind_it(helm: Helm) -> None:
    def longer(value: Any) -> Any:
        return f"{value}\n" if isinstance(value, str) else {key: longer(each) for key, each in value.items()}

    assert rendered(helm, {**NARROW, "resources": {**NARROW["resources"], "gpu": 2}}).returncode == 0
    refused = rendered(helm, longer(NARROW)).stderr
    places = [
        "image/digest",
        "nprocPerNode",
        "resources/gpuResourceName",
        "resources/cpu",
        "resources/limits/rdma~1hca",
    ]
    assert [place for place in [*places, "shmSize", "model/size"] if f"at '/{place}'" not in refused] == []


@pytest.mark.parametrize("api", ["pytorchjob", "trainjob"])
def test_names_that_are_words_or_numbers_of_yaml_stay_names(helm: Helm, api: str) -> None:
    options = (f"--set=api={api},model.accessMode=ReadWriteMany,metrics.enabled=true,metrics.dashboard=true",)
    options += ("--set=podDisruptionBudget.enabled=true", "--api-versions=monitoring.coreos.com/v1/PodMonitor")
    options += (r"--set-file=files.my\.py=tests/chart/conftest.py",)

    def manifests(name: str, namespace: str, *more: str) -> list[Any]:
        result = helm("template", name, str(CHART), f"--namespace={namespace}", *options, *more)
        assert result.returncode == 0, result.stderr
        return parsed(result.stdout)

    plain = manifests("x1x", "x2x")
    for name in ("on", "no", "y", "true", "null"):
        assert list(differences(manifests(name, "123"), substituted(plain, {"x1x": name, "x2x": "123"}))) == []
    plain = manifests("x1x", "x2x", "--set=fullnameOverride=off")
    assert (
        list(
            differences(
                manifests("123", "1e3", "--set=fullnameOverride=off"), substituted(plain, {"x1x": "123", "x2x": "1e3"})
            )
        )
        == []
    )


def test_a_subdirectory_is_a_template_whose_result_stays_a_string(helm: Helm) -> None:
    templates = {"123": "123", "on": "on", "a: b #c\n  d: e": "a: b #c\n  d: e", "{{ .Release.Name }}/1": "demo/1"}
    for template, path in templates.items():
        [job] = [
            each
            for each in parsed(rendered(helm, {"model": {"subPath": template}}).stdout)
            if each["kind"] == "PyTorchJob"
        ]
        mounts = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["volumeMounts"]
        assert {"name": "output", "mountPath": "/output", "subPath": path} in mounts
