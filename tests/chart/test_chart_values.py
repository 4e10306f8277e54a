"""Wrong values end with their name; names fit Kubernetes' limits."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]

CHART = "charts/torchtally"

# One of each kind of rule, and Kubernetes' own fields and words, at any depth.
SCHEMA = [
    ("workers=-1", "at '/workers'"),
    ("wrokers=1", "additional properties 'wrokers' not allowed"),
    ("image.repository=registry.example/a:1", "at '/image/repository'"),
    ("args={--epochs,true}", "at '/args/1': got boolean, want integer or string"),
    ("args={--steps,9007199254740993}", "at '/args/1': maximum:"),
    ("restartPolicy=Always", "at '/restartPolicy'"),  # with it no pod ever ends
    ("terminationGracePeriodSeconds=10", "at '/terminationGracePeriodSeconds'"),
    ("data.nfs.path=/b", "at '/data/nfs': missing property 'server'"),
    (r"files.a/\.\./b\.py=pass", "at '/files': additional properties 'a/../b.py' not allowed"),
    (
        "topologySpreadConstraints[0].whenUnsatisfiable=Maybe",
        "at '/topologySpreadConstraints/0/whenUnsatisfiable': value must be one of 'DoNotSchedule', 'ScheduleAnyway'",
    ),
    ("tolerations[0].efect=NoSchedule", "at '/tolerations/0': additional properties 'efect' not allowed"),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=Is",
        "/nodeSelectorTerms/0/matchExpressions/0/operator': value must be one of 'DoesNotExist', 'Exists'",
    ),
    ("initContainers[0].resources.limits.cpu=1Gb", "at '/initContainers/0/resources/limits/cpu': '1Gb' does not match"),
    ("network.interface=^lo", "at '/network/interface': '^lo' does not match pattern"),
    ("worker.tolerations[0].operator=Equals", "at '/worker/tolerations/0/operator': value must be one of"),
]


def test_the_schema_names_every_wrong_value(helm: Helm) -> None:
    for values in (SCHEMA[::2], SCHEMA[1::2]):  # apart: two of args
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
    del found["//properties/global"]  # a parent chart and its other parts have more
    assert [where for where, part in found.items() if part.get("additionalProperties") is not False] == []


@pytest.mark.parametrize(("workers", "allowed"), [(0, 54), (1, 54), (10, 54), (11, 53), (100, 53), (101, 52)])
def test_names_fit_to_the_last_character(helm: Helm, render: Render, workers: int, allowed: int) -> None:
    fits = render("--set", f"workers={workers},fullnameOverride={'a' * allowed}")
    [job] = [document["metadata"]["name"] for document in fits if document["kind"] == "PyTorchJob"]
    last = f"{job}-worker-{workers - 1}" if workers else f"{job}-master-0"
    assert len(last) == 63
    [role] = [document for document in fits if document["kind"] == "Role"]
    assert role["rules"][1]["resourceNames"][-1] == last  # the pods that the verifier may read are these pods
    assert all(len(document["metadata"]["name"]) <= 63 for document in fits)

    refused = helm("template", "demo", CHART, "--set", f"workers={workers},fullnameOverride={'a' * (allowed + 1)}")
    assert refused.returncode != 0
    assert f"has {allowed + 1} characters, but the maximum is {allowed}:" in refused.stderr


def test_a_release_whose_name_no_service_can_have_is_refused(helm: Helm) -> None:
    refused = helm("template", "de.mo", CHART)
    assert refused.returncode != 0
    assert 'fullnameOverride (or the release name) "de.mo" is not a valid Service name' in refused.stderr


def test_a_file_arrives_as_it_is_and_is_refused_where_helm_cannot_hold_it(
    helm: Helm, render: Render, tmp_path: Path
) -> None:
    script = tmp_path / "my.py"
    script.write_text("import sys  # ünïcode, {{ braces }}\n\nif __name__ == '__main__':\n    sys.exit(0)\n")
    given = ("--set-file", rf"files.my\.py={script}")
    [files] = [each for each in render(*given) if each["metadata"]["name"].startswith("demo-files-")]
    assert files["data"] == {"my.py": script.read_text()}
    script.write_text("#" * 409_600)
    assert render(*given)
    result = helm("template", "demo", CHART, *given, "--set", r"files.more\.py=pass")
    assert result.returncode != 0
    assert "files have 409604 bytes in total, but the maximum is 409600" in result.stderr


def test_another_version_of_the_chart_changes_no_pods(render: Render, tmp_path: Path) -> None:
    newer = tmp_path / "torchtally"
    shutil.copytree(Path(__file__).parents[2] / CHART, newer)
    about = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub("(?m)^version: .*", "version: 9.9.9", about))
    pods = []
    for chart in (CHART, newer):
        [job] = [each for each in render(chart=chart) if each["kind"] == "PyTorchJob"]
        pods.append((job["spec"], job["metadata"]["annotations"]["torchtally/pods"]))
    assert pods[0] == pods[1]
    [known] = [each for each in render(chart=newer) if each["metadata"]["name"] == "demo-chart"]
    assert known["data"] == {"version": "9.9.9"}
