"""Lint, unit tests, documentation and examples are as good as the chart."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchtally.local import manifest

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]

ROOT = Path(__file__).parents[2]
CHART = "charts/torchtally"
PARENTS = {"enabled"}  # what a chart has of which this one is a part
KIND = ("-f", f"{CHART}/ci/kind-values.yaml")


@pytest.mark.parametrize(
    "values", [None, *sorted((ROOT / CHART / "ci").iterdir())], ids=lambda path: path and path.stem
)
def test_lint(helm: Helm, values: Path | None) -> None:
    result = helm("lint", "--strict", CHART, *(("-f", str(values)) if values else ()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_templates_and_values_fit_on_a_screen() -> None:
    files = [ROOT / CHART / "values.yaml", *(ROOT / CHART / "templates").rglob("*.*")]
    lines = [(each.name, line) for each in files for line in each.read_text().splitlines()]
    assert len(lines) > 1500
    assert [(name, line) for name, line in lines if len(line) > 120] == []


@pytest.mark.parametrize(("example", "values"), [("fashion-mnist", KIND), ("fashion-mnist-gpu", ())])
def test_examples_are_what_the_chart_renders(render: Render, example: str, values: tuple[str, ...]) -> None:
    text = (ROOT / "examples" / f"{example}.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document]
    assert documents == render("--skip-tests", *values), "run `make examples`"


@pytest.mark.parametrize("api", ["pytorchjob", "trainjob"])
def test_the_local_runner_takes_what_the_chart_renders(render: Render, tmp_path: Path, api: str) -> None:
    documents = render(f"--set=api={api},workers=2,model.accessMode=ReadWriteMany", "--set=args={--epochs,7}")
    (path := tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    job = manifest.load(path).job
    assert job.name == "demo" and len(job.pods) == 3
    assert [pod.container["args"][-2:] for pod in job.pods] == 3 * [["--epochs", "7"]]


def test_the_definitions_of_kubernetes_are_its_own() -> None:
    result = subprocess.run(["tools/kubernetes_schema.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 2:
        pytest.skip(result.stderr)
    assert result.returncode == 0, result.stderr


def leaves(schema: dict[str, Any], defaults: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of the values: maps that have defaults are taken apart, others are a value."""
    for name, value in schema["properties"].items():
        if "properties" in value and defaults.get(name):
            yield from leaves(value, defaults[name])
        elif name not in PARENTS:
            yield value


def test_every_value_is_described_in_one_place() -> None:
    defaults = yaml.safe_load((ROOT / CHART / "values.yaml").read_text())
    values = leaves(json.loads((ROOT / CHART / "values.schema.json").read_text()), defaults)
    assert [value for value in values if not value.get("description")] == []
    written = subprocess.run(["tools/chart_values.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    assert [line for line in (ROOT / CHART / "README.md").read_text().splitlines() if line.endswith("|  |")] == []


def pods_hash(render: Render, *options: str) -> str:
    """By which an upgrade knows that the pods would be others."""
    (job,) = (each for each in render(*options) if each["kind"] == "PyTorchJob")
    found: str = job["metadata"]["annotations"]["torchtally/pods"]
    return found


def test_another_number_of_workers_is_an_upgrade_of_an_elastic_job_alone(render: Render) -> None:
    elastic = "--set=model.enabled=false,elasticPolicy.minReplicas=1,elasticPolicy.maxReplicas=4"
    assert pods_hash(render, elastic, "--set=workers=2") == pods_hash(render, elastic, "--set=workers=3")
    assert pods_hash(render, elastic, "--set=workers=2") != pods_hash(render, elastic, "--set=workers=2,shmSize=1Gi")
    assert pods_hash(render, "--set=workers=2") != pods_hash(render, "--set=workers=3")


def verifier_job(render: Render, *options: str) -> str:
    (job,) = (each for each in render("--set=verifier.job=true", *options) if each["kind"] == "Job")
    found: str = job["metadata"]["name"]
    return found


def test_the_verifiers_job_has_another_name_where_its_pod_or_those_of_the_training_are_others(render: Render) -> None:
    """A Job's pod is immutable, and one that has verified other pods proves nothing of these."""
    name = verifier_job(render)
    assert verifier_job(render, "--set=cleanPodPolicy=Running,suspend=true,labels.team=a") == name
    for change in ("image.tag=v2", "nodeSelector.pool=cpu", "args={--epochs,7}", "workers=2"):
        assert verifier_job(render, f"--set={change}") != name, change


def test_the_verifiers_job_has_the_pod_of_helm_test_and_waits(render: Render) -> None:
    options = ["--set=verifier.job=true,nodeSelector.pool=cpu", '--set-json=image.pullSecrets=[{"name":"key"}]']
    found = {each["kind"]: each["spec"] for each in render(*options) if each["kind"] in ("Job", "Pod")}
    (of_test,) = found["Pod"]["containers"]
    (of_job,) = found["Job"]["template"]["spec"]["containers"]
    of_test["args"].remove("240")  # seconds: below the limit of helm test
    assert of_test == of_job
    assert found["Pod"] == found["Job"]["template"]["spec"]


def names(value: Any, prefix: str = "") -> Iterator[str]:
    """Of a map's keys and all that are in it, as Helm's --set has them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            yield from names(inner, f"{prefix}{key}.")


def test_every_value_is_seen_rendered_by_a_unit_test() -> None:
    """Or by one of whole manifests. That a test would miss it is what `make mutations` tells."""
    given: set[str] = set()
    for suite in (ROOT / CHART / "tests").glob("*_test.yaml"):
        if suite.stem != "validate_test":  # which sees what is refused
            for test in (test for part in yaml.safe_load_all(suite.read_text()) for test in part["tests"]):
                given |= set(names(test.get("set", {})))
                for file in test.get("values", []):
                    given |= set(names(yaml.safe_load((suite.parent / file).read_text())))
    given |= {".".join(name.split(".")[:count]) for name in given for count in range(1, name.count(".") + 1)}
    schema = json.loads((ROOT / CHART / "values.schema.json").read_text())["properties"]
    values = [*schema, *(f"{name}.{key}" for name in schema for key in schema[name].get("properties", {}))]
    assert [name for name in values if name not in given | PARENTS] == []


def test_versions_agree() -> None:
    chart = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    images = [each["image"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])]
    assert images == [f"ghcr.io/torchtally/torchtally:{chart['appVersion']}-{device}" for device in ("cpu", "cuda")]
    package = tomllib.loads((ROOT / "trainer/pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == package
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(package)}\b", changelog, re.MULTILINE)
    changes = yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])
    assert {change["kind"] for change in changes} <= {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert all(change["description"] for change in changes)


def test_an_older_cluster_is_refused(helm: Helm) -> None:
    assert helm("template", CHART, "--kube-version=1.29.3-eks-1").returncode == 0
    assert "incompatible with Kubernetes v1.28.9" in helm("template", CHART, "--kube-version=1.28.9").stderr
