"""A null, Helm's way to leave a value out, stands for the default, or for none, in Helm 4 as in Helm 3."""

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

# A null takes the default away where the default is no number, word or switch that a job needs.
NONE = {
    "task": "",
    "resources.cpu": None,
    "resources.memory": None,
    "podLabels": {},
    "podAnnotations": {},
    "podSecurityContext": {},
    "securityContext": {},
}


def paths(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values and the values in maps, by their names for --set."""
    for name, value in values.items():
        yield prefix + name, value
        if isinstance(value, dict) and prefix + name not in NONE:
            yield from paths(value, f"{prefix}{name}.")


def flat(documents: list[dict[str, Any]]) -> str:
    return json.dumps(documents, sort_keys=True)


def test_what_a_null_stands_for_is_the_default_or_none(render: Render) -> None:
    """All at once, and each map whole as well as the values in it."""
    named = dict(paths(DEFAULTS))
    assert len(named) > 80
    emptied = [f"--set-json={name}={json.dumps(value)}" for name, value in NONE.items() if value is not None]
    # Helm merges an empty map with the default: only a null empties it.
    none = [f"--set-json={name}=null" for name, value in NONE.items() if value in ({}, None)]
    args = "--set=args={run,fashion-mnist}"
    expected = render(*emptied, *none, args)
    scalars = [name for name in named if not isinstance(named[name], dict) or not named[name] or name in NONE]
    assert flat(render(f"--set={','.join(f'{name}=null' for name in scalars if name != 'args')}", args)) == flat(
        expected
    )
    maps = [name for name in named if isinstance(named[name], dict) and name not in NONE and named[name]]
    assert flat(render(f"--set={','.join(f'{name}=null' for name in maps)}")) == flat(
        render("--set=resources.cpu=null,resources.memory=null")
    )


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
            "resources": {"cpu": None, "gpu": None, "limits": None},
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
    """A chart that has this one as parts, by their values."""

    def make(**values: dict[str, Any]) -> Path:
        folder = tmp_path / "parent"
        shutil.copytree(CHART, folder / "charts/torchtally", dirs_exist_ok=True)
        parts = [{"name": "torchtally", "version": "0.1.0", "alias": alias} for alias in values]
        chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": parts}
        (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        return folder

    return make


def test_nulls_of_a_parent_chart_render(render: Render, parent: Callable[..., Path]) -> None:
    """Helm 4 ignores those in the parent's own values.yaml, and Helm 3 takes the defaults away."""
    nulls = dict.fromkeys(DEFAULTS) | {"podSecurityContext": {"runAsUser": None}, "task": "gpt"}
    chart = parent(torchtally=nulls)
    [job] = [each for each in render(chart=chart) if each["kind"] == "PyTorchJob"]
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    values = chart / "given.yaml"
    values.write_text(yaml.safe_dump({"torchtally": {"podSecurityContext": {"runAsUser": None}, "tolerations": None}}))
    parent(torchtally={})
    [job] = [each for each in render("-f", str(values), chart=chart) if each["kind"] == "PyTorchJob"]
    assert "runAsUser" not in job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["securityContext"]


def test_a_chart_can_have_this_one_twice(helm: Helm, render: Render, parent: Callable[..., Path]) -> None:
    chart = parent(torchtally={}, evaluation={"task": "gpt"})
    documents = render(chart=chart)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names))
    assert {name for kind, name in names if kind == "PyTorchJob"} == {"demo", "demo-evaluation"}
    result = helm("template", "demo", str(parent(a={}, Big={})))
    assert '"demo-Big" is not a valid Service name' in result.stderr
