"""What a program without an account is handed out becomes events and metrics of its pods."""

import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import launched
import metric_names
import msgspec
import pytest
import ranks
from own_scripts import LIMIT, OWN, started
from scraping import scraped

from torchtally import events
from torchtally.errors import RETRIED
from torchtally.pod.metrics import Observed

SCRIPT = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
train = DataLoader(range(60), batch_size=8, sampler=DistributedSampler(range(60)))
for batch in DataLoader(range(12), batch_size=4):
    break
for epoch in range(2):
    for batch in train:
        optimizer.step()
while sys.argv[1:] and not Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""
TEST, TRAIN = "train.py:11 (range)", "train.py:14 (range)"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def reported(ended: subprocess.CompletedProcess[str]) -> list[events.Observed]:
    """By rank, loader, and pass."""
    assert "observed" not in ended.stdout
    found = [each.event for each in events.in_lines(ended.stderr.splitlines())]
    passes = [each for each in found if isinstance(each, events.Observed)]
    return sorted(passes, key=lambda each: (each.of_rank, each.loader, each.number))


EVENTS = [
    event
    for rank in range(2)
    for event in (
        events.Observed(of_rank=rank, loader=TEST, phase="evaluate", number=1, samples=4, batches=1, whole=False),
        events.Observed(of_rank=rank, loader=TRAIN, phase="train", number=1, samples=30, batches=4, whole=True),
        events.Observed(of_rank=rank, loader=TRAIN, phase="train", number=2, samples=30, batches=4, whole=True),
    )
]


def texts(ended: subprocess.CompletedProcess[str]) -> int:
    """How often it is told what all lines come to, of which there is one for each pass of a rank."""
    assert ended.stderr.count("TORCHTALLY-OBSERVED {") == len(reported(ended))
    return len(re.findall(r"observed: \d ranks?, ", ended.stderr))


def test_in_a_job_each_pass_is_one_event_and_the_lines_are_for_its_logs(script: Path) -> None:
    ended = started(script, PET_NNODES="1")
    assert ended.returncode == 0, ended.stderr
    assert (reported(ended), texts(ended)) == (EVENTS, 0)


def test_an_attempt_that_fails_has_reported_its_passes_and_ends_with_one_text(script: Path, tmp_path: Path) -> None:
    script.write_text(SCRIPT + "sys.exit(7)")
    ended = started(script, world=1, TORCHTALLY_RETRIES="1", TORCHTALLY_OUTPUT=str(tmp_path))
    assert ended.returncode == RETRIED, ended.stderr
    test, *train = (each for each in EVENTS if each.of_rank == 0)
    expected = [test, *(msgspec.structs.replace(each, samples=60, batches=8) for each in train)]
    assert (reported(ended), texts(ended)) == (expected, 1)


def test_the_passes_are_served_while_the_program_runs(script: Path, tmp_path: Path) -> None:
    port, end = ranks.free_port(), tmp_path / "end"
    kept = launched.environment(PET_NPROC_PER_NODE="2", TORCHTALLY_METRICS_PORT=str(port))
    command = [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, str(script), str(end)]
    process = subprocess.Popen(command, env=kept, stderr=subprocess.PIPE)
    try:
        launched.until("all samples and passes are served", lambda: sum(scraped(port).values()) >= 128 + 6)
        seen = scraped(port)
    finally:
        end.touch()
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and b"not served" not in said
    for rank in (0, 1):
        of = f"phase=train,rank={rank}"
        assert seen[f"torchtally_observed_passes_total,loader={TRAIN},{of}"] == 2
        assert seen[f"torchtally_observed_samples_total,loader={TRAIN},{of}"] == 60
        assert seen[f"torchtally_observed_samples_total,loader={TEST},phase=evaluate,rank={rank}"] == 4
    assert not scraped(port)


def test_without_its_port_the_program_goes_on(script: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = started(script, TORCHTALLY_METRICS_PORT=port)
    assert ended.returncode == 0 and reported(ended) == EVENTS
    assert ended.stderr.count(f"metrics are not served: TORCHTALLY_METRICS_PORT={port} cannot be") == 1


def test_what_keeps_an_account_is_not_observed_and_has_the_port() -> None:
    ended = started(OWN, TORCHTALLY_METRICS_PORT=str(ranks.free_port()))
    assert ended.returncode == 0, ended.stderr
    assert "not served" not in ended.stderr and reported(ended) == []
    assert "observed: " not in ended.stderr and "TORCHTALLY-OBSERVED" not in ended.stderr + ended.stdout


def test_a_long_pass_counts_once() -> None:
    metrics = Observed()
    for end, samples in (("open", 10), ("open", 25), ("whole", 60)):
        metrics.add(replace(metric_names.LINE, end=end, samples=samples))
    counted = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert counted == {"torchtally_observed_samples_total": 60, "torchtally_observed_passes_total": 1}
