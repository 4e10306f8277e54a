"""A pod that counts its restarts itself starts again without an import of torch: real agents, real deaths."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import launched
import psutil
import pytest
import ranks
from task_runs import reported

from torchtally import events
from torchtally.environment import Patience
from torchtally.errors import Lost
from torchtally.pod import attempts, termination_message
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.rendezvous import Rendezvous

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork of what has imported torch is Linux's alone")

MODULE = """
import os, time
from pathlib import Path
import torch, torch.distributed as dist
from torchtally import Account

def main():
    dist.init_process_group("gloo")
    rank, again = dist.get_rank(), Path({again!r})
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Account(task="again", plan={{"train": 1}}, anew=True) as account:
        for batch in account.epoch("train", 1, account.loader(torch.ones(8, 1), "train", batch_size=1)):
            model(batch.data).sum().backward()
            optimizer.step()
            account.commit()
            if batch.step == 2 and not again.exists():
                if rank == 1:
                    again.touch()
                    {end}
                time.sleep(1000)
            dist.all_reduce(torch.ones(1))
    return 0

if __name__ == "__main__":
    main()
"""
# The entry point as for a task, whose module it imports.
ENTRY = """
import os, sys
from torchtally.pod import launch
end = launch.launch([sys.executable, "-u", "-m", "again"], os.environ, lambda _: False, "again")
if callable(end):
    sys.exit(end())
os._exit(end)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return launched.environment(TORCHTALLY_RETRIES="3", TORCHTALLY_OUTPUT=str(tmp_path / "output"), **launched.STRICT)


def start(job: launched.Job, folder: Path, end: str) -> list[launched.Pod]:
    text = MODULE.format(again=str(folder / "trained"), end=end)
    return [start_one(job, folder, rank, text) for rank in range(2)]


def start_one(job: launched.Job, folder: Path, rank: int, text: str, **more: str) -> launched.Pod:
    (folder / "again.py").write_text(text)
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return job.start(rank, [], entry=ENTRY, PYTHONPATH=os.pathsep.join(places), **more)


@pytest.mark.nightly
def test_a_script_meets_the_others_again_as_well(two: launched.Job, tmp_path: Path) -> None:
    text = MODULE.format(again=str(tmp_path / "trained"), end="os.kill(os.getpid(), 9)")
    (path := tmp_path / "script.py").write_text(text)
    pods = [two.start(rank, ["run", str(path)]) for rank in range(2)]
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].errors + pods[1].errors
    assert all(len(reported(pod.errors, events.Started)) == 2 for pod in pods)


def test_all_pods_meet_again_after_a_rank_was_killed(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "os.kill(os.getpid(), 9)")
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].errors + pods[1].errors
    for pod, code in zip(pods, (203, 137), strict=True):
        assert [each.code for each in reported(pod.errors, events.Ended)] == [code, 0]
        assert len(reported(pod.errors, events.Started)) == 2
        assert "failed" not in pod.message, "a pod that has succeeded has no failure to tell"


def test_a_pod_whose_ranks_have_not_trained_ends(two: launched.Job, tmp_path: Path) -> None:
    """Whatever ails it may lie in its node, on which it need not start again."""
    (path := tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    pod = two.start(0, ["run", str(path)], WORLD_SIZE="1", PET_NNODES="1")
    assert pod.wait() == 137
    assert len(reported(pod.errors, events.Started)) == 1


def test_a_pod_that_is_told_to_stop_does_not_start_again(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "time.sleep(1000)")
    launched.until("both have trained", lambda: (tmp_path / "trained").exists())
    for pod in pods:
        pod.signal(signal.SIGTERM)
    assert [pod.wait() for pod in pods] == [143, 143]
    assert all(len(reported(pod.errors, events.Started)) == 1 for pod in pods)


def test_nothing_outlives_a_pod_that_is_killed(two: launched.Job, tmp_path: Path) -> None:
    pods = start(two, tmp_path, "time.sleep(1000)")
    launched.until("both have trained", lambda: (tmp_path / "trained").exists())
    family = [process for pod in pods for process in launched.family(pod.process.pid)]
    for pod in pods:
        pod.process.kill()
        pod.wait()
    launched.until("all processes have ended", lambda: all(map(launched.gone, family)))


def test_nothing_of_an_attempt_is_left_in_the_next_one(two: launched.Job, tmp_path: Path) -> None:
    """A process in a session of its own, which would write into the run, and the shared memory of a data loader."""
    left = [
        "import subprocess",
        "from multiprocessing import shared_memory",
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)",
        "memory = shared_memory.SharedMemory(create=True, size=1)",
        "os.fork() or time.sleep(1000)",
        f"Path({str(tmp_path / 'left')!r}).write_text(f'{{child.pid}} {{memory.name}}')",
        "os.kill(os.getpid(), 9)",
    ]
    pods = start(two, tmp_path, ("\n" + " " * 20).join(left))
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].errors + pods[1].errors
    assert len(reported(pods[1].errors, events.Started)) == 2
    pid, name = (tmp_path / "left").read_text().split()
    assert not psutil.pid_exists(int(pid))
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize(
    ("code", "starts"), [(203, 9), (143, 2), (137, 2), (201, 1), (202, 1), (134, 1), (139, 1), (1, 1)]
)
def test_only_the_end_of_another_pod_starts_a_pod_again_and_again(tmp_path: Path, code: int, starts: int) -> None:
    """Whatever ails the program, the memory, or the device of this one, a new container or node may be free of it."""

    def attempt(number: int) -> int:
        return code if number < 9 else 0

    assert ended(tmp_path, attempt) == ((0 if starts == 9 else code), starts)


def test_what_only_a_later_start_refuses_is_retried(tmp_path: Path) -> None:
    """A GPU that is gone, for example: another start of the job may have another one."""
    assert ended(tmp_path, lambda number: 203 if number == 1 else 2) == (201, 2)
    assert ended(tmp_path, lambda _: 2) == (2, 1)


def test_a_signal_between_two_starts_ends_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination_message, "write", lambda _: os.kill(os.getpid(), signal.SIGTERM))

    def attempt(number: int) -> int:
        if number > 1:
            time.sleep(1000)
        return 203

    assert ended(tmp_path, attempt)[0] == 143


def test_a_signal_after_the_end_of_the_last_start_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "confirmed", lambda code: (os.kill(os.getpid(), signal.SIGTERM), code)[1])
    assert ended(tmp_path, lambda _: 0) == (0, 1)


def test_nobody_waits_for_what_an_attempt_has_left_behind(tmp_path: Path) -> None:
    """A process that asks a driver for its GPUs may never end."""
    child = tmp_path / "child"

    def attempt(_: int) -> int:
        if not (pid := os.fork()):
            time.sleep(1000)
        child.write_text(str(pid))
        return 1

    try:
        assert ended(tmp_path, attempt) == (1, 1)
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


def ended(folder: Path, attempt: Callable[[int], int]) -> tuple[int | None, int]:
    """Run a pod's attempts. Returns its exit code, and how many there were."""
    (log := folder / "attempts").write_text("")

    def counted(again: Callable[[], None]) -> int:
        with log.open("a") as file:
            file.write("x")
        code = attempt(len(log.read_text()))
        again()
        return code

    return wait(lambda: os._exit(attempts.run(counted))), len(log.read_text())


def wait(function: Callable[[], object]) -> int | None:
    """Call `function` in a fork of this process, which has imported torch. Returns the exit code."""
    if not (pid := os.fork()):
        try:
            function()
        finally:
            os._exit(99)
    return psutil.Process(pid).wait(launched.LIMIT)


def test_a_pod_with_other_children_starts_no_attempts() -> None:
    """What a shell has left it, such as a reader of its output, would not be there for its next start."""

    def has_become_a_pod() -> None:
        before = attempts.possible()
        with subprocess.Popen(["sleep", "1000"]) as reader:
            after = attempts.possible()
            reader.kill()
        os._exit((before, after) != (True, False))

    assert wait(has_become_a_pod) == 0


def test_a_start_in_place_hides_no_cause() -> None:
    """Its earlier attempt has told its end, and another pod has not noticed yet."""
    port, patience = ranks.free_port(), Patience(cause=1)
    *pods, again = (Rendezvous("127.0.0.1", port, rank, 3, f"pod-{rank}", patience) for rank in (0, 1, 2, 2))
    with ThreadPoolExecutor() as pool:
        list(pool.map(meet, pods))
        explained = pool.submit(pods[1].cause, Failure(Kind.UNEXPLAINED, 7, "rank 1 failed"))
        assert pods[2].cause(LOST).text.startswith("rank 1 failed")
        again._timeout = 1.0
        with pytest.raises(Lost, match="pod-2 was started again"):
            again._join()
        assert pods[0].cause(LOST).text.startswith("rank 1 failed")
        explained.result()


LOST = Failure(Kind.CONSEQUENCE, 203, "a rank lost another")


def meet(pod: Rendezvous) -> None:
    pod._store = pod._join()
    pod._heartbeat = pod._start_heartbeat(pod._store.clone())


def test_a_count_of_restarts_that_cannot_be_kept_counts_no_starts_in_place(two: launched.Job, tmp_path: Path) -> None:
    """They would never end."""
    (tmp_path / "output").write_text("a file")
    text = MODULE.format(again="/nowhere", end="").replace("rank == 1", "0 == 1")
    text = text.replace("time.sleep(1000)", "os.kill(os.getpid(), 9)")
    pod = start_one(two, tmp_path, 0, text, WORLD_SIZE="1", PET_NNODES="1")
    assert pod.wait() == 137
    assert len(reported(pod.errors, events.Started)) == 1
