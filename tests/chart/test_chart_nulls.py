"""A null, Helm's way to leave a value out, makes it empty or is refused, in Helm 4 as in Helm 3."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]

CHART = Path(__file__).parents[2] / "charts/torchtally"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Beside these, only values that are empty by default can be left out.
EMPTIED = {"task", "resources.cpu", "resources.memory", "podLabels", "podAnnotations", "podSecurityContext"}
EMPTIED |= {"securityContext", "observe", "global"}


def paths(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values and the values in maps, by their names for --set."""
    for name, value in values.items():
        yield prefix + name, value
        if isinstance(value, dict) and prefix + name not in EMPTIED:
            yield from paths(value, f"{prefix}{name}.")


def flat(documents: list[dict[str, Any]]) -> str:
    return json.dumps(documents, sort_keys=True)


def needed() -> set[str]:
    """The values that the schema requires."""
    names = set(SCHEMA["required"])
    for part in (SCHEMA, *SCHEMA["allOf"]):
        for name, value in part["properties"].items():
            names |= {f"{name}.{each}" for each in value.get("required", ())}
    return names


@pytest.mark.parametrize(
    "options", [(), ("--set=api=trainjob,model.enabled=false",), ("--set=openshift=true,metrics.enabled=true",)]
)
def test_a_null_makes_a_value_empty(render: Render, options: tuple[str, ...]) -> None:
    """All at once; Helm merges an empty map with the default, so that only a null empties it."""
    named = dict(paths(DEFAULTS))
    left_out = named.keys() - needed() - {"args", "network.interface", "network.nccl", "network.port"}
    assert len(left_out) > 50 and left_out >= EMPTIED
    assert {name for name in left_out if named[name]} == {*EMPTIED, "network"}
    options = (*options, "--set=args={run,fashion-mnist}", "--api-versions=monitoring.coreos.com/v1/PodMonitor")
    expected = render(f"--set={','.join(f'{name}=null' for name in EMPTIED)}", *options)
    assert flat(render(f"--set={','.join(f'{name}=null' for name in left_out)}", *options)) == flat(expected)
    [job] = [each for each in expected if each["kind"] in ("PyTorchJob", "TrainJob")]
    assert "securityContext" not in flat([job]) and "sidecar.istio.io" not in flat([job])


def test_a_null_of_what_a_job_needs_is_refused_by_name(helm: Helm) -> None:
    names = sorted(needed())
    nested = [name for name in names if "." in name]
    for each in ([name for name in names if name not in nested], nested):
        result = helm("template", "demo", "charts/torchtally", f"--set={','.join(f'{name}=null' for name in each)}")
        assert result.returncode != 0
        for name in each:
            assert f"'{name.rpartition('.')[2]}'" in result.stderr, name


def test_a_null_in_what_a_user_gives_leaves_that_out(render: Render) -> None:
    given = {
        "tolerations": [None, {"key": "a", "operator": None, "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": None, "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
        "nodeSelector": {"pool": "gpu", "zone": None},
        "podLabels": {"team": None},
        "env": [{"name": "A", "value": None}, {"name": "B", "value": "b", "valueFrom": None}],
        "data": {"hostPath": None, "nfs": {"server": "a", "path": "/b", "readOnly": None}},
        "resources": {"limits": {"cpu": None}},
        "files": {"a.py": None, "b.py": "pass"},
        "podSecurityContext": {"runAsUser": None, "fsGroup": None},
        "network": {"nccl": {"DEBUG": None}},
        "schedulingPolicy": {"queue": None, "minAvailable": 2},
        "sidecars": [{"name": "a", "image": "b", "resources": {"limits": {"cpu": None}, "requests": None}}],
        "master": {
            "env": None,
            "resources": None,
            "nodeSelector": {"pool": None},
            "tolerations": None,
            "shmSize": None,
        },
        "worker": {
            "affinity": None,
            "resources": {"cpu": None, "limits": None},
            "priorityClassName": None,
        },
    }
    documents = render(*(f"--set-json={name}={json.dumps(value)}" for name, value in given.items()))
    assert "null" not in flat(documents)
    [job] = [each for each in documents if each["kind"] == "PyTorchJob"]
    master, worker = (job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"] for kind in ("Master", "Worker"))
    assert worker["tolerations"] == [{"key": "a", "effect": "NoSchedule"}] and "tolerations" not in master
    assert worker["nodeSelector"] == {"pool": "gpu"} and "nodeSelector" not in master
    assert master["containers"][0]["resources"]["requests"] == {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}
    assert worker["containers"][0]["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "1"}
    assert {"name": "A"} in worker["containers"][0]["env"] and {"name": "A"} not in master["containers"][0]["env"]
    assert {"name": "data", "nfs": {"server": "a", "path": "/b"}} in master["volumes"]
    assert {"runAsUser", "fsGroup"}.isdisjoint(master["securityContext"])
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2}


@pytest.fixture
def parent(tmp_path: Path) -> Callable[..., Path]:
    """A chart that has this one as parts, by their values, under conditions."""

    def make(**values: dict[str, Any]) -> Path:
        folder = tmp_path / "parent"
        shutil.copytree(CHART, folder / "charts/torchtally", dirs_exist_ok=True)
        part = {"name": "torchtally", "version": "0.1.0"}
        parts = [{**part, "alias": alias, "condition": f"{alias}.enabled"} for alias in values]
        chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": parts}
        (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        return folder

    return make


def test_nulls_of_a_parent_chart_render(render: Render, parent: Callable[..., Path]) -> None:
    """Helm 4 ignores those in the parent's own values.yaml, and Helm 3 takes the defaults away."""
    nulls = {name: None for name in DEFAULTS if name not in SCHEMA["required"]}
    nulls |= {"podSecurityContext": {"runAsUser": None}, "task": "mnist-cnn"}
    chart = parent(torchtally=nulls)
    [job] = [each for each in render(chart=chart) if each["kind"] == "PyTorchJob"]
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    values = chart / "given.yaml"
    values.write_text(yaml.safe_dump({"torchtally": {"podSecurityContext": {"runAsUser": None}, "tolerations": None}}))
    parent(torchtally={})
    [job] = [each for each in render("-f", str(values), chart=chart) if each["kind"] == "PyTorchJob"]
    assert "runAsUser" not in job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["securityContext"]


def test_a_chart_can_have_this_one_twice(helm: Helm, render: Render, parent: Callable[..., Path]) -> None:
    chart = parent(torchtally={}, evaluation={"task": "mnist-cnn"})
    documents = render(chart=chart)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names))
    assert {name for kind, name in names if kind == "PyTorchJob"} == {"demo", "demo-evaluation"}
    result = helm("template", "demo", str(parent(a={}, Big={})))
    assert '"demo-Big" is not a valid Service name' in result.stderr


def test_a_chart_can_leave_this_one_out(render: Render, parent: Callable[..., Path]) -> None:
    chart = parent(torchtally={"workers": 1})
    values = yaml.safe_load((chart / "values.yaml").read_text())
    (chart / "values.yaml").write_text(yaml.safe_dump({**values, "global": {"imageRegistry": "registry.example"}}))
    [job] = [each for each in render("--set=torchtally.enabled=true", chart=chart) if each["kind"] == "PyTorchJob"]
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert render("--set=torchtally.enabled=false", chart=chart) == []
