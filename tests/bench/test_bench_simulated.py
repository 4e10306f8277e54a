"""The simulated logs are what a job of that size would print, as far as the verifier can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure.simulated import SimulatedJob, lines, write

JOB = SimulatedJob(ranks=5, epochs=2, n=23)


def verified(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/verify_shards.py", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a file a pod, and the one stream."""
    write(JOB, tmp_path / "pods", tmp_path / "stream.log")
    return tmp_path / "pods", tmp_path / "stream.log"


def test_they_verify_as_true_in_both_forms(logs: tuple[Path, Path]) -> None:
    assert len(list(logs[0].iterdir())) == JOB.ranks
    for path in logs:
        result = verified(path)
        assert result.returncode == 0, result.stdout
        assert "5 ranks, train 2 epochs" in result.stdout
        assert "note" not in result.stdout  # nothing is missing


@pytest.mark.parametrize("form", [0, 1])
def test_one_altered_line_is_found(logs: tuple[Path, Path], form: int) -> None:
    path = logs[form] / "large-worker-2.log" if form == 0 else logs[1]
    text = path.read_text()
    own = next(text for rank, text in lines(JOB) if rank == 3)
    assert own in text
    path.write_text(text.replace(own, own.replace('"expected":4,"consumed":4', '"expected":4,"consumed":5')))
    result = verified(logs[form])
    assert result.returncode == 1
    assert "rank 3 consumed 5" in result.stdout
