"""Seconds from the command to the first step on a cluster: what is started by hand, and what the table says."""

from pathlib import Path

import made
import pytest
import yaml

from bench import cluster, cluster_table
from torchtally import events
from torchtally.local import environment, manifest


class Applied(cluster.Namespace):
    """Keeps what is applied."""

    manifest = ""

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        self.manifest += text or ""
        return ""


def test_the_job_by_hand_is_the_charts_but_for_what_the_chart_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2E_IMAGE", "localhost:5000/torchtally:cpu")
    monkeypatch.setenv("E2E_DATA", "/e2e/data")
    applied = Applied("trial")
    assert cluster.STARTS["blog"](applied) == "blog"
    (tmp_path / "job.yaml").write_text(applied.manifest)
    job = manifest.load(str(tmp_path / "job.yaml")).job
    assert [pod.name for pod in job.pods] == ["blog-master-0", "blog-worker-0", "blog-worker-1", "blog-worker-2"]
    values = yaml.safe_load((cluster.ROOT / "charts/torchtally/ci/kind-values.yaml").read_text())["resources"]
    for rank, pod in enumerate(job.pods):
        variables = environment.pod_environment(job, pod)
        named = [variables[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
        assert named == [str(rank), "4", "blog-master-0"]
        assert pod.container["image"] == "localhost:5000/torchtally:cpu"
        assert pod.container["resources"]["requests"] == values["requests"]
        assert pod.container["resources"]["limits"] == {name: values[name] for name in ("cpu", "memory")}
        config, data = pod.spec["volumes"]
        assert data["hostPath"]["path"] == "/e2e/data"
        assert all((cluster.ROOT / item["path"]).name == item["key"] for item in config["configMap"]["items"])
        assert all((cluster.ROOT / item["path"]).exists() for item in config["configMap"]["items"])


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


def test_a_phase_that_one_has_in_parts_is_put_together() -> None:
    found = made.results()
    ours = {"command": 0.5, "scheduling": 1.0, "import": 6.0, "rendezvous+data+first step": 9.0, "together": 16.5}
    by_hand = {"command": 0.25, "scheduling": 1.0, "import+rendezvous+data+first step": 20.0, "together": 21.25}
    for tool, phases in (("torchtally", ours), ("blog", by_hand)):
        for phase, seconds in phases.items():
            values = [seconds, seconds + 2, seconds + 10]
            made.add(found, cluster_table.MEASURE, values, "lower", tool=tool, phase=phase)
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
