"""What a cluster may do to pods: delete, kill or freeze them, suspend and resume their job."""

import signal
import time
from pathlib import Path

import psutil
import pytest
from launched import until
from livejobs import Live
from localjobs import load, pod_spec, pytorchjob

from torchtally.local.controller import Controller, Outcome, Phase

pytestmark = pytest.mark.timeout(300)

WORKER = "demo-worker-0"
RUNNING = {"cleanPodPolicy": "Running"}  # the master's end is that of all


def starting(folder: Path, first: str, then: str) -> str:
    """A script that does this when its name starts for the first time, and that later on."""
    return f"echo x >>{folder}/$HOSTNAME; if test $(wc -l <{folder}/$HOSTNAME) = 1; then {first}; else {then}; fi"


def job(folder: Path, worker: str, policy: str | None = None, grace: int | None = None, **limits: int) -> Live:
    """One whose master, and so the job, ends when the worker has made the file `go`."""
    master = f"until test -e {folder}/go; do sleep 0.05; done"
    document = pytorchjob(master, worker, policy=policy, runPolicy=RUNNING | limits)
    if grace is not None:
        pod_spec(document, "Worker")["terminationGracePeriodSeconds"] = grace
    return Live(load(folder, document))


def phase(live: Live, pod: str = WORKER) -> Phase:
    found = []
    live.do(lambda controller: found.append(controller.status[pod].phase))
    return found[0]


def delete(controller: Controller) -> None:
    controller.delete(WORKER)


@pytest.mark.parametrize("policy", ["ExitCode", "Never", "OnFailure"])
def test_a_deleted_pod_is_made_anew(tmp_path: Path, policy: str) -> None:
    worker = starting(
        tmp_path,
        "trap 'echo asked to end; exit 7' TERM; echo up; while :; do sleep 0.05; done",
        f"echo again with rank $RANK; touch {tmp_path}/go; exec sleep 60",
    )
    with job(tmp_path, worker, policy) as live:
        live.until(f"[{WORKER}] up")
        live.do(delete)
        live.until("asked to end")
        live.until("again with rank 1")
        ended = live.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert live.starts == {"demo-master-0": 1, WORKER: 2}
    assert ended.status[WORKER].restarts == 0


def test_a_deleted_pod_has_its_grace_period(tmp_path: Path) -> None:
    stubborn = "trap 'echo asked to end' TERM; echo up; while :; do sleep 0.05; done"
    worker = starting(tmp_path, stubborn, f"touch {tmp_path}/go")
    with job(tmp_path, worker, grace=5) as live:
        live.until("up")
        began = time.monotonic()
        live.do(delete)
        live.until("asked to end")
        live.do(delete)  # no second signal
        live.end()
    assert live.lines.count(f"[{WORKER}] asked to end") == 1
    assert time.monotonic() - began >= 5


def test_a_new_pod_has_not_restarted_yet(tmp_path: Path) -> None:
    """So that the restarts of a deleted one do not count for backoffLimit."""
    worker = (
        f"echo x >>{tmp_path}/starts; case $(wc -l <{tmp_path}/starts) in 1) exit 1;; 2) echo up; exec sleep 60;;"
        f" 3) exit 1;; *) touch {tmp_path}/go; exec sleep 60;; esac"
    )
    with job(tmp_path, worker, backoffLimit=2) as live:
        live.until("up")
        live.do(delete)
        ended = live.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED, ended.said
    assert (ended.status[WORKER].restarts, live.starts[WORKER]) == (1, 4)


def test_a_pod_that_has_ended_can_be_deleted(tmp_path: Path) -> None:
    worker = starting(tmp_path, "exit 0", f"touch {tmp_path}/go")
    with job(tmp_path, worker) as live:
        until("the worker has ended", lambda: phase(live) is Phase.SUCCEEDED)
        live.do(delete)
        assert live.end().verdict.outcome is Outcome.SUCCEEDED


def test_a_pod_that_waits_for_its_restart_can_be_deleted(tmp_path: Path) -> None:
    # Its third restart would come after 2 s, and its fourth after 4.
    worker = (
        f"echo x >>{tmp_path}/starts; test $(wc -l <{tmp_path}/starts) -le 4 && exit 1; touch {tmp_path}/go; sleep 60"
    )
    with job(tmp_path, worker) as live:
        live.until("restart 4 (")
        live.do(delete)
        until("the worker has started again", lambda: live.starts[WORKER] == 5)
        ended = live.end()
    assert ended.status[WORKER].restarts == 0


def test_suspended_and_resumed(tmp_path: Path) -> None:
    """The time while a job is suspended does not count for its deadline, and it has all of it when it is resumed."""
    first = "trap 'echo asked to end; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    script = starting(tmp_path, first, "exec sleep 60")
    pods = [f"demo-{name}" for name in ("master-0", "worker-0", "worker-1")]
    deadline = 15  # enough for three pods to start
    policy = RUNNING | {"activeDeadlineSeconds": deadline}
    with Live(load(tmp_path, pytorchjob(script, script, workers=2, policy="Never", runPolicy=policy))) as live:
        live.until(*(f"[{pod}] up" for pod in pods))
        live.do(Controller.suspend)
        live.until(*(f"[{pod}] asked to end" for pod in pods))
        until("all pods are gone", lambda: {phase(live, pod) for pod in pods} == {Phase.DELETED})
        while time.monotonic() < live.started[0] + deadline + 0.2:
            assert {phase(live, pod) for pod in pods} == {Phase.DELETED}
            time.sleep(0.1)
        resumed = time.monotonic()
        live.do(Controller.resume)
        ended = live.end()
    assert time.monotonic() - resumed >= deadline
    assert ended.verdict.outcome is Outcome.FAILED
    assert live.starts == dict.fromkeys(pods, 2)
    assert [text for text in ended.said if "deleted" not in text] == [
        "PyTorchJob demo is suspended.",
        "PyTorchJob demo is resumed.",
        "Job demo has failed because it was active longer than specified deadline",
    ]


def test_a_suspended_job_can_be_interrupted(tmp_path: Path) -> None:
    with Live(load(tmp_path, pytorchjob("echo up; exec sleep 60"))) as live:
        live.until("up")
        live.do(Controller.suspend)
        until("the master is gone", lambda: phase(live, "demo-master-0") is Phase.DELETED)
        live.do(lambda controller: controller.interrupt(signal.SIGINT))
        assert live.end().verdict.outcome is Outcome.INTERRUPTED
    assert live.starts == {"demo-master-0": 1}


def test_a_killed_pod_restarts(tmp_path: Path) -> None:
    worker = starting(tmp_path, "sleep 1000 & echo up; wait", f"touch {tmp_path}/go")
    with job(tmp_path, worker, "OnFailure") as live:
        live.until("up")
        live.do(lambda controller: controller.kill(WORKER))
        live.until(f"{WORKER} ended with exit code 137: restart 1 (restartPolicy OnFailure)")
        assert live.end().verdict.outcome is Outcome.SUCCEEDED


def still(pids: list[int]) -> set[bool]:
    return {psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids}


def test_a_frozen_pod_stands_still_until_it_is_thawed(tmp_path: Path) -> None:
    apart = f"(setsid sleep 1000 & echo $! >>{tmp_path}/pids)"
    family = f"{apart}; sleep 1000 & echo $! $BASHPID >>{tmp_path}/pids; echo up; wait"
    with job(tmp_path, family) as live:
        live.until("up")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        for act, stopped in ((Controller.freeze, {True}), (Controller.thaw, {False})):
            live.do(lambda controller, act=act: act(controller, WORKER))
            until("all processes stand still, or none", lambda stopped=stopped: still(pids) == stopped)
