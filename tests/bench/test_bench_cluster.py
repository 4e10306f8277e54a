"""Seconds from the command to the first step on a cluster: what is started, what is kept of it, and its table."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import cluster, cluster_table, results
from bench.results import Results
from bench.sample import Sample
from torchtally import events

sys.path.append(str(cluster.ROOT / "scripts"))

from local import environment, manifest

OURS = {"command": 0.5, "scheduling": 1.0, "import": 6.0, "rendezvous+data+first step": 9.0, "together": 16.5}
BY_HAND = {"command": 0.25, "scheduling": 1.0, "import+rendezvous+data+first step": 20.0, "together": 21.25}


class Applied(cluster.Namespace):
    """Keeps what is applied."""

    manifests: list[str] = []  # noqa: RUF012

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        self.manifests.append(text or "")
        return ""


def test_the_job_by_hand_is_the_charts_but_for_what_the_chart_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2E_IMAGE", "localhost:5000/torchtally:cpu")
    monkeypatch.setenv("E2E_DATA", "/e2e/data")
    monkeypatch.setattr(Applied, "manifests", [])
    assert cluster.STARTS["blog"](Applied("trial")) == "blog"
    (tmp_path / "job.yaml").write_text(Applied.manifests[0])
    job = manifest.load(str(tmp_path / "job.yaml")).job
    assert [pod.name for pod in job.pods] == ["blog-master-0", "blog-worker-0", "blog-worker-1", "blog-worker-2"]
    values = yaml.safe_load((cluster.ROOT / "charts/torchtally/ci/kind-values.yaml").read_text())["resources"]
    for rank, pod in enumerate(job.pods):
        variables = environment.pod_environment(job, pod)
        assert (variables["RANK"], variables["WORLD_SIZE"], variables["MASTER_ADDR"]) == (
            str(rank),
            "4",
            "blog-master-0",
        )
        assert pod.container["image"] == "localhost:5000/torchtally:cpu"
        assert pod.container["resources"]["requests"] == values["requests"]
        assert pod.container["resources"]["limits"] == {name: values[name] for name in ("cpu", "memory")}
        config, data = pod.spec["volumes"]
        assert data["hostPath"]["path"] == "/e2e/data"
        assert all((cluster.ROOT / item["path"]).name == item["key"] for item in config["configMap"]["items"])
        assert all((cluster.ROOT / item["path"]).exists() for item in config["configMap"]["items"])


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and commands of a run on a cluster of which nothing is there, and a round by hand fails."""
    commands: list[str] = []

    def phases(namespace: cluster.Namespace, start: Any) -> dict[str, float]:
        if namespace.name == "torchtally-bench-blog-2":
            raise AssertionError("waited in vain")
        return OURS if "torchtally-bench-torchtally" in namespace.name else BY_HAND

    monkeypatch.setenv("E2E_IMAGE", "localhost:5000/torchtally:cpu")
    monkeypatch.setenv("E2E_DATA", "/e2e/data")
    monkeypatch.setenv("E2E_REGISTRY", "localhost:5000")
    monkeypatch.setattr(cluster, "FOLDER", folder)
    monkeypatch.setattr(cluster.controllers, "apply_operator", lambda: commands.append("operator"))
    monkeypatch.setattr(cluster.nodes, "workers", lambda: ["kind-worker"])
    monkeypatch.setattr(cluster.nodes, "on", lambda node, script: commands.append(f"{node}: {script}"))
    monkeypatch.setattr(cluster.Namespace, "create", lambda self: commands.append(f"create {self.name}"))
    monkeypatch.setattr(cluster.Namespace, "delete", lambda self: commands.append(f"delete {self.name}"))
    monkeypatch.setattr(cluster, "run", lambda *command: commands.append(" ".join(command)))
    monkeypatch.setattr(cluster, "_versions", lambda: {"kubernetes": "v1.34.4"})
    monkeypatch.setattr(cluster, "_phases", phases)
    return cluster.main(list(arguments)), commands


def test_both_are_started_in_turn_and_one_that_fails_loses_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, commands = run(monkeypatch, tmp_path, "--rounds", "2")
    assert status == 1
    (path,) = (tmp_path / "cluster").iterdir()
    found = results.load(path)
    together = {tool: found.one(cluster_table.MEASURE, tool=tool, phase="together") for tool in ("torchtally", "blog")}
    assert {tool: each and each.rounds for tool, each in together.items()} == {"torchtally": [1, 2], "blog": [1]}
    assert "| together | 16.5 [16.5–16.5] | 21.2 |" in (tmp_path / "cluster.md").read_text()

    names = [f"torchtally-bench-{tool}-{number}" for number in (1, 2) for tool in ("torchtally", "blog")]
    assert [each for each in commands if each.startswith("create")] == [f"create {name}" for name in names]
    gone = [f"kubectl wait --for=delete namespace/{name} --timeout={cluster.LIMIT}s" for name in names]
    assert [each for each in commands if each.startswith("kubectl wait")] == gone
    removals = [each for each in commands if "crictl --timeout=60s rmi localhost:5000/torchtally:cpu" in each]
    assert len(removals) == 4  # before each start


def test_an_image_that_is_on_the_nodes_alone_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(cluster.nodes, "workers", lambda: ["kind-worker"])
    monkeypatch.setattr(cluster.nodes, "on", lambda node, script: commands.append(script))
    monkeypatch.setenv("E2E_IMAGE", "docker.io/library/torchtally:cpu")
    monkeypatch.setenv("E2E_REGISTRY", "localhost:5000")
    cluster.forget_the_image()
    monkeypatch.delenv("E2E_REGISTRY")
    cluster.forget_the_image()
    assert commands == []


def test_phases_are_those_of_status_and_of_a_log_without_events_the_rest_is_one() -> None:
    start = {"created": 101.0, "seconds": 9.0, "phases": {"scheduling": 5.0, "container": 4.0}}
    line = 'not it\n{"samples": 2560, "seconds": 0.8, "first_step": 120.5}\n{"first_step"'
    by_hand = cluster.phases(start, 100.5, cluster.first_step(line))
    rest = {"import+rendezvous+data+first step": 10.5}
    assert by_hand == {"command": 0.5, "scheduling": 5.0, "container": 4.0, **rest, "together": 20.0}
    assert cluster.first_step('{"samples": 2560}\n') is None

    record = events.Record(130.0, events.Source(pod="demo-master-0", run="a", attempt=0, rank=0), events.Step(epoch=1))
    assert cluster.first_step(f"{events.line(record)}\n") == 130.0
    start = {"created": 100.0, "seconds": 30.0, "phases": {"scheduling": 5.0, "container+first step": 25.0}}
    ours = cluster.phases(start, 100.5, 130.0)
    assert ours == {"command": 0.0, "scheduling": 5.0, "container+first step": 25.0, "together": 29.5}


def test_bad_input_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("E2E_IMAGE", raising=False)
    monkeypatch.setenv("E2E_DATA", "/e2e/data")
    assert cluster.main([]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("bench.cluster: E2E_IMAGE must be set: `make bench-")
    with pytest.raises(SystemExit) as ended:
        cluster.main(["--rounds", "0"])
    assert ended.value.code == 2 and "--rounds is 0, must be 1 or more" in capsys.readouterr().err


def test_a_phase_that_one_has_in_parts_is_put_together() -> None:
    machine: dict[str, str | int | float] = {"processor": "A", "cores": 2, "memory_gb": 8}
    found = Results(began="2026-01-01", seconds=9.0, commit="abc", machine=machine, versions={})
    for number, more in ((1, 0.0), (2, 2.0), (3, 10.0)):
        for tool, phases in (("torchtally", OURS), ("blog", BY_HAND)):
            for phase, seconds in phases.items():
                case: dict[str, str | int] = {"tool": tool, "phase": phase}
                sample = Sample(
                    measure=cluster_table.MEASURE, case=case, unit="s", better="lower", value=seconds + more
                )
                found.add(sample, number, 0.5)
    rows = [line for line in cluster_table.text(found).splitlines() if line.startswith("|")]
    assert rows == [
        "| phase | helm install | by hand |",
        "| --- | ---: | ---: |",
        "| command | 2.50 [0.50–10.5] | 2.25 [0.25–10.2] |",
        "| scheduling | 3.00 [1.00–11.0] | 3.00 [1.00–11.0] |",
        "| import | 8.00 [6.00–16.0] | – |",
        "| rendezvous+data+first step | 11.0 [9.00–19.0] | – |",
        "| import+rendezvous+data+first step | 19.0 [15.0–35.0] | 22.0 [20.0–30.0] |",
        "| together | 18.5 [16.5–26.5] | 23.2 [21.2–31.2] |",
    ]
