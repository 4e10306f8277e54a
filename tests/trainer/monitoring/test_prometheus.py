"""The metrics of a training, as Prometheus reads them in the meantime."""

import math
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import ranks
from accounts import alone, run
from commands import TORCHTALLY
from launched import LIMIT, until
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from scraping import scraped
from witness import Noisy, Witness

from torchtally import Account
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.reporting.step_time import StepTime, Times
from torchtally.checkpoints import stopping
from torchtally.monitoring.pod_metrics import PARTS, PodMetrics
from torchtally.monitoring.run_metrics import RunMetrics

RUN = Run(
    run="abc", attempt=2, pod="pod", task="toy", plan={"train": 3, "test": 3}, rank=0, world=4, seed=0, data="sha256:1"
)


def registry(collector: Collector) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=True)
    found.register(collector)
    return found


def test_a_run_is_watched_while_it_trains(environment: dict[str, str]) -> None:
    port, began = ranks.free_port(), time.time()
    own = {"PET_NPROC_PER_NODE": "2", "TORCHTALLY_METRICS_PORT": str(port)}
    endless = ["run", "fashion-mnist", "--epochs", "10000", "--batch-size", "250", "--hidden", "16"]
    process = subprocess.Popen([*TORCHTALLY, *endless], env=environment | own)
    seen: dict[str, float] = {}

    def has_trained() -> bool:
        assert process.poll() is None
        seen.update(scraped(port))
        return seen.get("torchtally_proofs_total,holds=true,phase=test", 0) >= 2

    try:
        until("two epochs are proved", has_trained)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT)
    assert 2 / 10_000 <= seen["torchtally_progress_ratio"] < 0.5
    assert seen["torchtally_remaining_seconds"] > 1
    assert began <= seen["torchtally_last_checkpoint_timestamp_seconds"] <= time.time()
    assert seen["torchtally_checkpoint_interval_seconds"] == 300
    assert seen["torchtally_samples_total"] >= 120_000
    assert seen["torchtally_step_seconds_count"] >= 2 * 119
    assert seen["torchtally_epoch"] >= 2
    assert (seen["torchtally_epochs"], seen["torchtally_world_size"], seen["torchtally_attempt"]) == (10_000, 2, 0)
    assert seen["torchtally_proofs_total,holds=false,phase=train"] == 0
    assert 0 < seen["torchtally_train_loss"] < 5
    assert 0.05 < seen["torchtally_test_accuracy"] < 1
    assert seen["torchtally_samples_per_second"] > 0
    assert [name for name in seen if name.startswith("torchtally_run_info,") and "task=fashion-mnist" in name]


def served_at(port: str) -> None:
    os.environ["TORCHTALLY_METRICS_PORT"] = port
    with Account(task="served", plan={"train": 1}, seed=1) as account:
        loader = account.loader(Noisy(4), "train", batch_size=2)
        for _ in account.epoch("train", 1, loader):
            account.commit()


def test_without_its_port_it_trains_and_says_so_and_a_port_that_is_none_is_refused() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = alone(served_at, port)
    assert ended["code"] == 0, ended["err"]
    assert ended["err"].count(f"torchtally: metrics are not served: TORCHTALLY_METRICS_PORT={port} cannot be") == 1
    assert "✓ every sample exactly once" in ended["out"]
    refused = alone(served_at, "http")
    assert (refused["code"], "TORCHTALLY_METRICS_PORT='http' must be" in refused["err"]) == (2, True)


def line(phase: str, lost: int | None, duplicated: int | None) -> dict[str, Any]:
    return {"phase": phase, "lost": lost, "duplicated": duplicated}


def test_what_is_wrong_is_counted() -> None:
    metrics = RunMetrics(RUN, None, found := CollectorRegistry())
    value = found.get_sample_value
    assert math.isnan(value("torchtally_test_loss") or 0)
    metrics.proof(line("train", 0, 0), True)
    metrics.proof(line("train", 3, 1), False)
    metrics.proof(line("test", None, None), False)  # too many to be counted
    assert value("torchtally_proofs_total", {"phase": "train", "holds": "true"}) == 1
    assert value("torchtally_proofs_total", {"phase": "train", "holds": "false"}) == 1
    assert value("torchtally_proofs_total", {"phase": "test", "holds": "false"}) == 1
    assert value("torchtally_wrong_samples_total", {"phase": "train", "how": "lost"}) == 3
    assert value("torchtally_wrong_samples_total", {"phase": "train", "how": "duplicated"}) == 1
    assert value("torchtally_attempt") == 2


def test_a_programs_own_number_does_not_replace_another_metric(capsys: pytest.CaptureFixture[str]) -> None:
    found = registry(PodMetrics(RUN, 1.0))
    metrics = RunMetrics(RUN, None, found)
    for value in (1.0, 2.0):
        metrics.metrics(1, train_perplexity=value, step_seconds=value, pod_samples_total=value)
    assert found.get_sample_value("torchtally_train_perplexity") == 2
    assert found.get_sample_value("torchtally_step_seconds_count") == 0
    assert found.get_sample_value("torchtally_pod_samples_total") == 0
    printed = capsys.readouterr().err
    assert printed.count("torchtally_step_seconds is another metric") == 1
    assert printed.count("torchtally_pod_samples_total is another metric") == 1


def test_the_test_between_two_epochs_is_no_step() -> None:
    metrics = RunMetrics(RUN, None, found := CollectorRegistry())
    for epoch in (1, 1, 1, 2, 2):
        metrics.step(epoch, 5, 0.1)
    assert found.get_sample_value("torchtally_step_seconds_count") == 3
    assert found.get_sample_value("torchtally_step_seconds_bucket", {"le": "+Inf"}) == 3
    assert found.get_sample_value("torchtally_samples_total") == 25


def test_the_time_left_follows_from_the_speed_of_this_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    metrics = RunMetrics(RUN, None, found := CollectorRegistry())
    value = found.get_sample_value
    metrics.begin(10, 0.5)
    assert math.isnan(value("torchtally_remaining_seconds") or 0)
    now = 130.0
    metrics.step(2, 5, 0.6)
    assert value("torchtally_progress_ratio") == 0.6
    assert value("torchtally_remaining_seconds") == pytest.approx(120)


def watched(ports: list[int], folder: Path) -> dict[str, Any]:
    """A rank that is a pod: what it serves after each step of two ranks, which have 10 samples, and at the end."""
    rank = int(os.environ["RANK"])
    os.environ["TORCHTALLY_METRICS_PORT"] = str(ports[rank])
    stopping._SYNCHRONIZE_SECONDS = 0
    training = Witness(10)
    seen = {}
    with Account(task="watched", plan={"train": 2}, seed=1) as account:
        saving = account.checkpoints(folder, training.objects, every=60)
        saving.resume()
        loader = account.loader(Noisy(10), "train", batch_size=2)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                training.step()
                account.commit()
                seen[epoch, batch.step] = scraped(ports[rank])
        saving.save(wait=True)
        seen["saved"] = scraped(ports[rank])
    assert scraped(ports[rank]) == {}
    return seen


def test_each_pod_serves_its_own_metrics_and_that_of_rank_0_those_of_the_run(tmp_path: Path) -> None:
    began = time.time()
    found = run(2, watched, [ranks.free_port(), ranks.free_port()], tmp_path)
    for each in found:
        assert each["code"] == 0, each["err"]
        seen = each["result"]
        steps = [seen[epoch, step] for epoch in (1, 2) for step in (1, 2, 3)]
        assert [now["torchtally_steps_total"] for now in steps] == [1, 2, 3, 4, 5, 6]
        assert [now["torchtally_pod_samples_total"] for now in steps] == [2, 4, 5, 7, 9, 10]
        assert seen["saved"]["torchtally_timed_steps_total"] == 6
        parts = {part: seen["saved"][f"torchtally_step_part_seconds_total,part={part}"] for part in PARTS}
        assert parts["data_wait"] > 0 and parts["compute"] > 0
        assert parts["communication"] == 0  # which is not seen without weigh()
        assert [name for name in seen["saved"] if re.search("torchtally_run_info,data=.*,task=watched", name)]
    first, second = (each["result"]["saved"] for each in found)
    assert first["torchtally_samples_total"] == 20
    assert first["torchtally_progress_ratio"] == 1
    assert began < first["torchtally_last_checkpoint_timestamp_seconds"] <= time.time()
    early = found[0]["result"][1, 1]["torchtally_last_checkpoint_timestamp_seconds"]
    assert early < first["torchtally_last_checkpoint_timestamp_seconds"]
    assert first["torchtally_checkpoint_interval_seconds"] == 60
    assert "torchtally_steps_total" in second
    assert "torchtally_samples_total" not in second


class Current:
    def __init__(self, phase: str, counted: int):
        self.phase, self.counted = phase, counted

    def samples(self, first: int, last: int) -> int:
        return 10 * (last - first)


def test_the_counts_of_a_pod_grow_while_an_epoch_ends_and_another_begins() -> None:
    """Of phases side by side, and of one that goes on after a restart."""

    metrics = PodMetrics(RUN, 0.25)
    value = registry(metrics).get_sample_value
    metrics.begin(train := Current("train", 3), StepTime())
    metrics.begin(tune := Current("tune", 0), StepTime())
    train.counted, tune.counted = 5, 1
    assert (value("torchtally_steps_total"), value("torchtally_pod_samples_total")) == (3, 7.5)
    metrics.begin(train := Current("train", 0), StepTime())
    assert (value("torchtally_steps_total"), value("torchtally_pod_samples_total")) == (3, 7.5)
    train.counted = 1
    assert (value("torchtally_steps_total"), value("torchtally_pod_samples_total")) == (4, 10)


def test_the_times_of_a_pod_never_decrease() -> None:
    """As where the loop is between two of their sums."""

    class Timer:
        total = Times(steps=3, data_wait=0.25, compute=2.0, communication=0.5)

    metrics, timer = PodMetrics(RUN, 1.0), Timer()
    value = registry(metrics).get_sample_value
    metrics.begin(Current("train", 0), timer)
    for compute, served in ((2.0, 2.0), (1.5, 2.0), (2.5, 2.5)):
        timer.total = Times(steps=3, data_wait=0.25, compute=compute, communication=0.5)
        assert value("torchtally_step_part_seconds_total", {"part": "compute"}) == served
    assert value("torchtally_step_part_seconds_total", {"part": "data_wait"}) == 0.25
    assert value("torchtally_timed_steps_total") == 3
