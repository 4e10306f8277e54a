"""Rank 0's metrics, as Prometheus reads them while it trains."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ranks
from prometheus_client.parser import text_string_to_metric_families

from torchtally.accounting.tally import Run
from torchtally.monitoring.prometheus import Metrics

LIMIT = 300  # seconds
DASHBOARD = Path(__file__).parents[2] / "charts/torchtally/dashboards/torchtally.json"
NAME = re.compile(r"torchtally_\w+")
RUN = Run(
    run="abc", attempt=2, pod="pod", task="toy", plan={"train": 3, "test": 3}, rank=0, world=4, seed=0, data="sha256:1"
)


@pytest.fixture
def environment(fashion_mnist: Path, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    return {
        **kept,
        **{"OMP_NUM_THREADS": "1", "PET_NPROC_PER_NODE": "2", "TORCHTALLY_DEVICE": "cpu"},
        "TORCHTALLY_DATA": str(fashion_mnist),
        "TORCHTALLY_OUTPUT": str(tmp_path / "output"),
    }


def command(epochs: int) -> list[str]:
    quick = ["--epochs", str(epochs), "--batch-size", "250", "--hidden", "16"]
    return [sys.executable, "-m", "torchtally.cli", "run", "fashion-mnist", *quick]


def scraped(port: int) -> dict[str, float]:
    """All samples by name and labels; none where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        ",".join([each.name, *(f"{name}={value}" for name, value in sorted(each.labels.items()))]): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_a_run_is_watched_while_it_trains(environment: dict[str, str]) -> None:
    port = ranks.free_port()
    process = subprocess.Popen(command(10_000), env={**environment, "TORCHTALLY_METRICS_PORT": str(port)})
    try:
        ends = time.monotonic() + LIMIT
        while (seen := scraped(port)).get("torchtally_proofs_total,holds=true,phase=test", 0) < 2:
            assert process.poll() is None
            assert time.monotonic() < ends, seen
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT)
    assert seen["torchtally_samples_total"] >= 120_000
    assert seen["torchtally_samples_total"] % 500 == 0
    assert seen["torchtally_step_seconds_count"] >= 2 * 119
    assert seen["torchtally_epoch"] >= 2
    assert (seen["torchtally_epochs"], seen["torchtally_world_size"], seen["torchtally_attempt"]) == (10_000, 2, 0)
    assert seen["torchtally_proofs_total,holds=false,phase=train"] == 0
    assert 0 < seen["torchtally_train_loss"] < 5
    assert 0.05 < seen["torchtally_test_accuracy"] < 1
    assert seen["torchtally_samples_per_second"] > 0
    assert [name for name in seen if name.startswith("torchtally_run_info,") and "task=fashion-mnist" in name]


def test_without_its_port_it_trains_and_says_so(environment: dict[str, str]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            command(1), env={**environment, "TORCHTALLY_METRICS_PORT": port}, capture_output=True, text=True
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(f"torchtally: metrics are not served: TORCHTALLY_METRICS_PORT={port} cannot be") == 1
    assert "✓ every sample exactly once" in ended.stdout


def test_a_port_that_is_none_is_refused(environment: dict[str, str]) -> None:
    ended = subprocess.run(
        command(1), env={**environment, "TORCHTALLY_METRICS_PORT": "http"}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "TORCHTALLY_METRICS_PORT='http' must be a whole number from 1 to 65535" in ended.stderr


def line(phase: str, lost: int | None, doubled: int | None) -> dict[str, Any]:
    return {"phase": phase, "lost": lost, "doubled": doubled}


def test_what_is_wrong_is_counted() -> None:
    metrics = Metrics(RUN)
    value = metrics.registry.get_sample_value
    assert math.isnan(value("torchtally_test_loss") or 0)
    metrics.proof(line("train", 0, 0), True)
    metrics.proof(line("train", 3, 1), False)
    metrics.proof(line("test", None, None), False)  # too many to be counted
    assert value("torchtally_proofs_total", {"phase": "train", "holds": "true"}) == 1
    assert value("torchtally_proofs_total", {"phase": "train", "holds": "false"}) == 1
    assert value("torchtally_proofs_total", {"phase": "test", "holds": "false"}) == 1
    assert value("torchtally_wrong_samples_total", {"phase": "train", "how": "lost"}) == 3
    assert value("torchtally_wrong_samples_total", {"phase": "train", "how": "doubled"}) == 1
    assert value("torchtally_attempt") == 2


def test_a_programs_own_number_does_not_replace_another_metric(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics(RUN)
    for value in (1.0, 2.0):
        metrics.metrics(1, train_perplexity=value, step_seconds=value)
    assert metrics.registry.get_sample_value("torchtally_train_perplexity") == 2
    assert metrics.registry.get_sample_value("torchtally_step_seconds_count") == 0
    assert capsys.readouterr().err.count("torchtally_step_seconds is another metric") == 1


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {name for panel in dashboard["panels"] for each in panel["targets"] for name in NAME.findall(each["expr"])}
    asked |= {name for each in dashboard["templating"]["list"] for name in NAME.findall(each["query"])}
    served = {each.name for family in Metrics(RUN).registry.collect() for each in family.samples}
    assert asked
    assert asked <= served


def test_the_test_between_two_epochs_is_no_step() -> None:
    metrics = Metrics(RUN)
    for epoch in (1, 1, 1, 2, 2):
        metrics.step(epoch, 5, 0.1)
    assert metrics.registry.get_sample_value("torchtally_step_seconds_count") == 3
    assert metrics.registry.get_sample_value("torchtally_samples_total") == 25
