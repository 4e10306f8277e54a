"""The logs of successful jobs of several pods: no line that a user would ask about, whatever the task."""

from pathlib import Path

import clean_log
import launched
import pytest
from commands import FEW
from task_data import fetched

from torchtally import tasks

DATA = {"image-folder": "image-folder", "keras-mnist": "mnist", "mnist-cnn": "mnist"}


# The logs of the others are read in test_record.py and test_parameter_server.py.
@pytest.mark.parametrize("task", tasks.OPTIONS.keys() - {"fashion-mnist", "parameter-server"})
def test_of_each_built_in_task(tmp_path: Path, task: str) -> None:
    """Their ranks find the data where it has been fetched."""
    data = Path(__file__).parents[3] / "docs/tasks" if task == "gpt" else fetched(DATA[task])
    command = ["run", task, "--epochs", "2", "--batch-size", "16"]
    more = {"TORCHTALLY_OUTPUT": str(tmp_path / "out"), "TORCHTALLY_DATA": str(data)}
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
