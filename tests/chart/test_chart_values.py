"""Wrong values end with their name; names fit Kubernetes' limits."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]

CHART = "charts/torchtally"

SCHEMA = [
    ("workers=-1", "at '/workers'"),
    ("workers=1.5", "at '/workers'"),
    ("wrokers=1", "additional properties 'wrokers' not allowed"),
    ("image.name=a", "at '/image': additional properties 'name' not allowed"),
    ("image.repository=registry.example/a:1", "at '/image/repository'"),
    ("image.digest=sha256:1", "at '/image/digest'"),
    ("image.pullPolicy=always", "at '/image/pullPolicy'"),
    ("args={--epochs,true}", "at '/args/1': got boolean, want integer or string"),
    ("task=Fashion MNIST", "at '/task'"),
    ("nprocPerNode=two", "at '/nprocPerNode'"),
    ("nprocPerNode=0", "at '/nprocPerNode'"),
    ("resources.gpu=one", "at '/resources/gpu': got string, want integer"),
    ("resources.memory=32GB", "at '/resources/memory'"),
    ("resources.limits.cpu=many", "at '/resources/limits/cpu'"),
    ("cleanPodPolicy=none", "at '/cleanPodPolicy'"),
    ("restartPolicy=Always", "at '/restartPolicy'"),  # with it no pod ever ends
    ("backoffLimit=-1", "at '/backoffLimit'"),
    ("terminationGracePeriodSeconds=10", "at '/terminationGracePeriodSeconds'"),
    ("activeDeadlineSeconds=0", "at '/activeDeadlineSeconds'"),
    ("ttlSecondsAfterFinished=1h", "at '/ttlSecondsAfterFinished'"),
    ("env[0].name=DEBUG,env[0].value=1", "at '/env/0/value': got number, want null or string"),
    ("shmSize=large", "at '/shmSize'"),
    ("data.nfs.path=/b", "at '/data/nfs': missing property 'server'"),
    (r"files.a/b\.py=pass", "at '/files': additional properties 'a/b.py' not allowed"),
    (r"files.my\.py=1", "at '/files/my.py': got number, want null or string"),
    ("model.accessMode=Many", "at '/model/accessMode'"),
    ("network.interface=eth0 eth1", "at '/network/interface'"),
    ("preflight=always", "at '/preflight'"),
    ("observe=always", "at '/observe'"),
    ("metrics.port=80", "at '/metrics/port'"),
    ("suspend=no-thanks", "at '/suspend': got string, want boolean"),
    ("managedBy=me", "at '/managedBy'"),
    ("sidecars[0].image=a", "at '/sidecars/0': missing property 'name'"),
    ("networkPolicy=false", "at '/networkPolicy': got boolean, want object"),
    ("args={--steps,9007199254740993}", "at '/args/1': maximum:"),
    # Kubernetes' own fields and words, at any depth.
    (
        "topologySpreadConstraints[0].whenUnsatisfiable=Maybe",
        "at '/topologySpreadConstraints/0/whenUnsatisfiable': value must be one of 'DoNotSchedule', 'ScheduleAnyway'",
    ),
    ("tolerations[0].effect=NoSchedul", "at '/tolerations/0/effect': value must be one of 'NoExecute', 'NoSchedule'"),
    ("tolerations[0].efect=NoSchedule", "at '/tolerations/0': additional properties 'efect' not allowed"),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=Is",
        "/nodeSelectorTerms/0/matchExpressions/0/operator': value must be one of 'DoesNotExist', 'Exists'",
    ),
    ("initContainers[0].resources.limits.cpu=1Gb", "at '/initContainers/0/resources/limits/cpu': '1Gb' does not match"),
    ("worker.tolerations[0].operator=Equals", "at '/worker/tolerations/0/operator': value must be one of"),
]


def apart(values: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """In groups of values of different keys, which Helm can judge at once: each start of it takes long."""
    groups: list[dict[str, tuple[str, str]]] = []
    for value, message in values:
        key = re.split(r"[.=\[]", value)[0]
        group = next((each for each in groups if key not in each), None)
        if group is None:
            groups.append(group := {})
        group[key] = value, message
    return [list(group.values()) for group in groups]


@pytest.mark.parametrize("values", apart(SCHEMA))
def test_the_schema_names_every_wrong_value(helm: Helm, values: list[tuple[str, str]]) -> None:
    result = helm("template", "demo", CHART, *(f"--set={value}" for value, _ in values))
    assert result.returncode != 0
    assert [value for value, message in values if message not in result.stderr] == [], result.stderr


def objects(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each definition of an object with named fields, and its place in the schema."""
    for key, part in schema.items() if isinstance(schema, dict) else ():
        if isinstance(part, dict):
            if "type" in part and "properties" in part:
                yield f"{where}/{key}", part
            yield from objects(part, f"{where}/{key}")


def test_no_object_takes_a_field_that_the_schema_does_not_name() -> None:
    found = dict(objects({"": json.loads((Path(__file__).parents[2] / CHART / "values.schema.json").read_text())}))
    assert len(found) > 100
    assert [where for where, part in found.items() if part.get("additionalProperties") is not False] == []


def test_contradictions_are_told_in_one_line(helm: Helm) -> None:
    result = helm("template", "demo", CHART, "--set", "task=,nprocPerNode=2")
    assert result.returncode != 0
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert "task, command and args are all empty" in line
    assert "nprocPerNode is 2 but resources.gpu is 1" in line


@pytest.mark.parametrize(("workers", "allowed"), [(0, 54), (1, 54), (10, 54), (11, 53), (100, 53), (101, 52)])
def test_names_fit_to_the_last_character(helm: Helm, render: Render, workers: int, allowed: int) -> None:
    fits = render("--set", f"workers={workers},jobName={'a' * allowed}")
    [job] = [document["metadata"]["name"] for document in fits if document["kind"] == "PyTorchJob"]
    last = f"{job}-worker-{workers - 1}" if workers else f"{job}-master-0"
    assert len(last) == 63
    [role] = [document for document in fits if document["kind"] == "Role"]
    assert role["rules"][1]["resourceNames"][-1] == last  # the pods that the verifier may read are these pods
    assert all(len(document["metadata"]["name"]) <= 63 for document in fits)

    refused = helm("template", "demo", CHART, "--set", f"workers={workers},jobName={'a' * (allowed + 1)}")
    assert refused.returncode != 0
    assert f"has {allowed + 1} characters, but the maximum is {allowed}:" in refused.stderr


def test_the_longest_name_of_a_release_fits_or_is_refused(helm: Helm, render: Render) -> None:
    assert render(name="a" * 53)
    refused = helm("template", "a" * 53, CHART, "--set", "workers=101")
    assert "(or the release name)" in refused.stderr and "the maximum is 52:" in refused.stderr


@pytest.mark.parametrize("name", ["1demo", "de.mo"])
def test_a_release_whose_name_no_service_can_have_is_refused(helm: Helm, name: str) -> None:
    refused = helm("template", name, CHART)
    assert refused.returncode != 0
    assert f'jobName (or the release name) "{name}" is not a valid Service name' in refused.stderr


def test_a_missing_operator_is_told_in_a_sentence(helm: Helm, render: Render) -> None:
    """A real API server lists its kinds, v1/Pod among them; without one, nothing is known and nothing refused."""
    missing = helm("template", "demo", CHART, "--api-versions", "v1/Pod")
    assert missing.returncode != 0
    assert "to install the Kubeflow training operator, run kubectl apply" in missing.stderr
    assert render("--api-versions", "v1/Pod", "--api-versions", "kubeflow.org/v1/PyTorchJob")
    assert render()


def test_a_file_arrives_as_it_is_and_is_refused_where_a_configmap_cannot_hold_it(
    helm: Helm, render: Render, tmp_path: Path
) -> None:
    script = tmp_path / "my.py"
    script.write_text("import sys  # ünïcode, {{ braces }}\n\nif __name__ == '__main__':\n    sys.exit(0)\n")
    given = ("--set-file", rf"files.my\.py={script}")
    [files] = [each for each in render(*given) if each["metadata"]["name"].startswith("demo-files-")]
    assert files["data"] == {"my.py": script.read_text()}
    script.write_text("#" * (1 << 20))
    assert render(*given)
    result = helm("template", "demo", CHART, *given, "--set", r"files.more\.py=pass")
    assert result.returncode != 0
    assert "files have 1048580 bytes in total, but a ConfigMap is limited to 1048576" in result.stderr


def test_it_can_be_a_subchart(render: Render, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(Path(__file__).parents[2] / CHART, parent / "charts" / "torchtally")
    (parent / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "parent", "version": "1.0.0"}))
    values = {"global": {"imageRegistry": "registry.example"}, "torchtally": {"workers": 1}}
    (parent / "values.yaml").write_text(yaml.safe_dump(values))
    [job] = [document for document in render(chart=parent) if document["kind"] == "PyTorchJob"]
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1

    part = {"name": "torchtally", "version": "0.1.0", "condition": "torchtally.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [part]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert render("--set=torchtally.enabled=true", chart=parent)
    assert render("--set=torchtally.enabled=false", chart=parent) == []
