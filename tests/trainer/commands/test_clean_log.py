"""The logs of successful jobs of several pods: no line that a user would ask about, whatever the task."""

from pathlib import Path

import clean_log
import launched
import pytest
from commands import FEW


# The logs of the other tasks are read in test_record.py, and in the files of the tasks.
def test_of_mnist_cnn(tmp_path: Path, mnist: Path) -> None:
    command = ["run", "mnist-cnn", "--epochs", "2", "--batch-size", "16"]
    more = {"TORCHTALLY_OUTPUT": str(tmp_path / "out"), "TORCHTALLY_DATA": str(mnist)}
    with launched.job(launched.environment(**more), tmp_path, 2) as job:
        pods = [job.start(rank, command, entry=FEW) for rank in range(2)]
        written = [pod.rest() + pod.errors for pod in pods]
        assert [pod.process.returncode for pod in pods] == [0, 0], written
    for log in written:
        clean_log.assert_clean(log)


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "/usr/lib/python3/site-packages/x.py:3: UserWarning: this is deprecated",
        "W1123 12:00:00.000000 17 torch/distributed/elastic/agent.py:9] Error waiting on exit barrier",
        'TORCHTALLY-EVENT {"v":1,torchtally: another message',
        "train      1  all  4     60000     59999     1        0  ✗ not what the contract says",
        "",
    ],
)
def test_another_line_is_named(line: str) -> None:
    with pytest.raises(AssertionError, match="no known form"):
        clean_log.assert_clean(f"torchtally: a message\n[demo-worker-0] {line}\n")
