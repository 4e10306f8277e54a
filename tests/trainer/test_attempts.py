"""A pod that counts its restarts itself starts again without an import of torch: real agents, real deaths."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import launched
import psutil
import pytest

from torchtally import events

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork of what has imported torch is Linux's alone")

SCRIPT = """
import os, time
from pathlib import Path
import torch, torch.distributed as dist
from torchtally import Account

dist.init_process_group("gloo")
rank, again = dist.get_rank(), Path({again!r})
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Account(task="again", plan={{"train": 1}}, anew=True) as account:
    for batch in account.epoch("train", 1, account.loader("train", torch.ones(8, 1), batch_size=1)):
        model(batch.data).sum().backward()
        optimizer.step()
        account.commit()
        if batch.step == 2 and not again.exists():
            if rank == 1:
                again.touch()
                {end}
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[launched.Job]:
    more = {"TORCHTALLY_RETRIES": "3", "TORCHTALLY_OUTPUT": str(tmp_path / "output")}
    with launched.job(launched.environment(**more), tmp_path, 2) as job:
        yield job


# Ranks that do not notice that a peer is gone are killed sooner.
STRICT = (
    "import sys; from torchtally import cli; from torchtally.pod import heartbeat\n"
    "heartbeat.GRACE = 1; sys.exit(cli.main(sys.argv[1:]))"
)


def start(job: launched.Job, folder: Path, end: str) -> list[launched.Pod]:
    (path := folder / "again.py").write_text(SCRIPT.format(again=str(folder / "again"), end=end))
    return [job.start(rank, ["run", str(path)], entry=STRICT) for rank in range(2)]


def reported(pod: launched.Pod, kind: type[events.Event]) -> list[events.Event]:
    return [each.event for each in events.in_lines(pod.errors.splitlines()) if isinstance(each.event, kind)]


def test_all_pods_meet_again_after_a_rank_was_killed(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "os.kill(os.getpid(), 9)")
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].errors + pods[1].errors
    for pod, code in zip(pods, (203, 137), strict=True):
        assert [each.code for each in reported(pod, events.Ended)] == [code, 0]
        assert len(reported(pod, events.Started)) == 2
        assert pod.message == "", "a pod that has succeeded has no failure to tell"


def test_a_pod_whose_ranks_have_not_trained_ends(two: launched.Job, tmp_path: Path) -> None:
    """Whatever ails it may lie in its node, on which it need not start again."""
    (path := tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    pod = two.start(0, ["run", str(path)], WORLD_SIZE="1", PET_NNODES="1")
    assert pod.wait() == 137
    assert len(reported(pod, events.Started)) == 1


def test_a_pod_that_is_told_to_stop_does_not_start_again(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "time.sleep(1000)")
    launched.until("both have trained", lambda: (tmp_path / "again").exists())
    for pod in pods:
        pod.signal(signal.SIGTERM)
    assert [pod.wait() for pod in pods] == [143, 143]
    assert all(len(reported(pod, events.Started)) == 1 for pod in pods)


def test_nothing_outlives_a_pod_that_is_killed(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "time.sleep(1000)")
    launched.until("both have trained", lambda: (tmp_path / "again").exists())
    family = [process for pod in pods for process in launched.family(pod.process.pid)]
    for pod in pods:
        pod.process.kill()
        pod.wait()
    launched.until("all processes have ended", lambda: all(map(launched.gone, family)))


def test_nothing_of_an_attempt_is_left_in_the_next_one(two: launched.Job, tmp_path: Path) -> None:
    """A process that a rank has started in a session of its own, and that would write into the run."""
    left = "import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True); "
    left += f"Path({str(tmp_path / 'left')!r}).write_text(str(child.pid)); os.kill(os.getpid(), 9)"
    pods = start(two, tmp_path, left)
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].errors + pods[1].errors
    assert len(reported(pods[1], events.Started)) == 2
    assert not psutil.pid_exists(int((tmp_path / "left").read_text()))
