"""A job whose controller replaces failed pods for ever: the pods end it when it makes no progress."""

import json
import signal
from pathlib import Path

import launched
import pytest

from torchtally import events
from torchtally.pod import retries
from torchtally.pod.failure import Failure, Kind

OBSERVED = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
for batch in DataLoader(range(60), batch_size=8, sampler=DistributedSampler(range(60))):
    optimizer.step()
if dist.get_rank() == 1 and not Path(sys.argv[1]).exists():
    sys.exit(7)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return launched.environment(TORCHTALLY_OUTPUT=str(tmp_path / "output"), TORCHTALLY_RETRIES="1", **launched.STRICT)


def resume(environment: dict[str, str], epoch: int, position: int, run: str = "r") -> None:
    event = events.Resumed(task="t", world=1, checkpoint=None, epoch=epoch, position=position, discarded=0)
    retries.resumed(event, events.Source(pod="demo-master-0", rank=0, run=run, attempt=1), environment)


def start(environment: dict[str, str], code: int = 7) -> int:
    """Let the pod start and end with a code. Returns the one that its controller sees."""
    counted = retries.Retries({**environment, "HOSTNAME": "demo-master-0"}, counts=True)
    counted.begin()
    failure = counted.end(Failure(Kind.KNOWN, code, "rank 0 failed") if code else None)
    return failure.code if failure else 0


def test_a_failed_program_is_retried_and_no_more_often_than_allowed_without_progress(
    environment: dict[str, str], alone: launched.Job
) -> None:
    assert [start(environment), start(environment)] == [201, 201]
    resume(environment, 1, 100)
    assert [start(environment), alone.start(0, launched.shell("exit 7")).wait()] == [201, 201]
    resume(environment, 1, 100)  # the same place again
    last = alone.start(0, launched.shell("echo not run"))
    assert last.wait() == 1
    assert last.message.startswith(
        "demo-master-0 has started 2 times without progress, and TORCHTALLY_RETRIES is 1; the last start "
        "ended with: rank 0 (demo-master-0) failed with exit code 7"
    )
    assert last.line() == ""
    # Another job in this folder begins with all its retries.
    assert start(environment) == 201


def test_pods_that_are_killed_count_and_all_pods_end(two: launched.Job) -> None:
    """As by the kernel's OOM killer: no process can report it."""
    for _ in range(2):
        started = two.all(launched.shell("echo ready; sleep 1000"))
        assert [pod.line() for pod in started] == ["ready", "ready"]
        for pod in started:
            pod.kill()
    started = two.all(launched.shell("echo not run"))
    assert [pod.wait() for pod in started] == [1, 1]
    for pod in started:
        assert pod.message.endswith("the pod was killed, for example because it was out of memory")


def test_an_observed_script_is_retried_and_observed_in_each_start(two: launched.Job, tmp_path: Path) -> None:
    """It resumes from nothing that could count as progress. The master lost its peer, and begins again by itself."""
    (script := tmp_path / "train.py").write_text(OBSERVED)
    command = ["run", str(script), str(mended := tmp_path / "mended")]
    master, *workers = two.all(command, TORCHTALLY_OBSERVE="auto")
    assert workers[-1].wait() == 201
    workers.append(two.start(1, command, TORCHTALLY_OBSERVE="auto"))
    assert workers[-1].wait() == 201
    last = two.start(1, command, TORCHTALLY_OBSERVE="auto")
    assert [last.wait(), master.wait()] == [1, 1]
    for pod in (last, master):
        assert "has started 2 times without progress, and TORCHTALLY_RETRIES is 1" in pod.message
    assert handed_out(master) == 2 * [(0, 30)]
    assert [handed_out(pod) for pod in (*workers, last)] == [[(1, 30)], [(1, 30)], []]

    mended.touch()
    assert [pod.wait() for pod in two.all(command, TORCHTALLY_OBSERVE="auto")] == [0, 0]


def handed_out(pod: launched.Pod) -> list[tuple[int, int]]:
    """Rank and samples of each pass that was observed."""
    told = [each.event for each in events.in_lines(pod.errors.splitlines())]
    return [(event.of_rank, event.samples) for event in told if isinstance(event, events.Observed)]


@pytest.mark.parametrize("code", [2, 3])
def test_an_end_that_no_retry_cures_ends_all_pods_at_once(two: launched.Job, code: int) -> None:
    started = two.all(launched.shell(f"[ $RANK = 1 ] && exit {code}; sleep 1000"))
    assert [pod.wait() for pod in started] == [code, code]


def test_a_pod_that_is_stopped_in_order_has_not_failed(environment: dict[str, str], alone: launched.Job) -> None:
    assert [start(environment, 143) for _ in range(3)] == [143] * 3
    pod = alone.start(0, launched.shell("trap 'kill $!; exit 0' TERM; echo ready; sleep 1000 & wait"))
    assert pod.line() == "ready"
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143
    assert [start(environment), start(environment)] == [201, 201]  # as many as allowed, so it has not counted


def test_success_forgets_everything(environment: dict[str, str], alone: launched.Job, tmp_path: Path) -> None:
    assert start(environment) == 201
    resume(environment, 9, 0)
    assert alone.start(0, launched.shell("exit 0")).wait() == 0
    assert list((tmp_path / "output").iterdir()) == []


def test_only_a_resume_further_on_is_progress(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "output/.progress.json"
    file.parent.mkdir()
    for epoch, position in ((2, 10), (2, 5), (1, 99)):
        resume(environment, epoch, position)
        assert json.loads(file.read_text()) == {"r": [2, 10]}
    resume(environment, 3, 0)
    resume(environment, 1, 1, run="of the next fold")
    assert json.loads(file.read_text()) == {"r": [3, 0], "of the next fold": [1, 1]}


@pytest.mark.parametrize("damaged", ["", "[]", '{"failures": "many"}', '{"r": 1}'])
def test_a_damaged_record_counts_as_none(environment: dict[str, str], tmp_path: Path, damaged: str) -> None:
    (tmp_path / "output").mkdir()
    for name in (".retries-demo-master-0.json", ".progress.json"):
        (tmp_path / "output" / name).write_text(damaged)
    assert start(environment) == 201


def test_an_output_that_cannot_be_written_stops_no_training(alone: launched.Job, tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file")
    assert alone.start(0, launched.shell("exit 0")).wait() == 0
