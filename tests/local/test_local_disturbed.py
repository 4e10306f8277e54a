"""What a cluster may do to pods: delete, kill or freeze them, suspend and resume their job."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from livejobs import LIMIT, Live
from localjobs import load, pod_spec, pytorchjob

from local.controller import Controller, Outcome, Phase

pytestmark = pytest.mark.timeout(300)

WORKER = "demo-worker-0"
RUNNING = {"cleanPodPolicy": "Running"}  # the master's end is that of all


def starting(folder: Path, first: str, then: str) -> str:
    """A script that does this when its name starts for the first time, and that later on."""
    return f"echo x >>{folder}/$HOSTNAME; if test $(wc -l <{folder}/$HOSTNAME) = 1; then {first}; else {then}; fi"


def waiting(file: Path) -> str:
    return f"until test -e {file}; do sleep 0.05; done"


def wait_until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


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
    job = load(tmp_path, pytorchjob(waiting(tmp_path / "go"), worker, policy=policy, runPolicy=RUNNING))
    with Live(job) as live:
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
    document = pytorchjob(waiting(tmp_path / "go"), worker)
    pod_spec(document, "Worker")["terminationGracePeriodSeconds"] = 5
    with Live(load(tmp_path, document)) as live:
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
    policy = RUNNING | {"backoffLimit": 2}
    with Live(load(tmp_path, pytorchjob(waiting(tmp_path / "go"), worker, runPolicy=policy))) as live:
        live.until("up")
        live.do(delete)
        ended = live.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED, ended.said
    assert (ended.status[WORKER].restarts, live.starts[WORKER]) == (1, 4)


def test_a_pod_that_has_ended_can_be_deleted(tmp_path: Path) -> None:
    worker = starting(tmp_path, "exit 0", f"touch {tmp_path}/go")
    with Live(load(tmp_path, pytorchjob(waiting(tmp_path / "go"), worker))) as live:
        wait_until(lambda: phase(live) is Phase.SUCCEEDED)
        live.do(delete)
        assert live.end().verdict.outcome is Outcome.SUCCEEDED


def test_a_pod_that_waits_for_its_restart_can_be_deleted(tmp_path: Path) -> None:
    # Its third restart would come after 2 s, and its fourth after 4.
    worker = (
        f"echo x >>{tmp_path}/starts; test $(wc -l <{tmp_path}/starts) -le 4 && exit 1; touch {tmp_path}/go; sleep 60"
    )
    with Live(load(tmp_path, pytorchjob(waiting(tmp_path / "go"), worker, runPolicy=RUNNING))) as live:
        live.until("restart 4 (")
        live.do(delete)
        wait_until(lambda: live.starts[WORKER] == 5)
        ended = live.end()
    assert ended.status[WORKER].restarts == 0


def test_suspended_and_resumed(tmp_path: Path) -> None:
    script = starting(tmp_path, "trap 'echo asked to end; exit 0' TERM; echo up; while :; do sleep 0.05; done", "true")
    pods = [f"demo-{name}" for name in ("master-0", "worker-0", "worker-1")]
    # What time a job is suspended does not count for its deadline.
    policy = RUNNING | {"activeDeadlineSeconds": 10}
    with Live(load(tmp_path, pytorchjob(script, script, workers=2, policy="Never", runPolicy=policy))) as live:
        live.until(*(f"[{pod}] up" for pod in pods))
        live.do(Controller.suspend)
        live.until(*(f"[{pod}] asked to end" for pod in pods))
        wait_until(lambda: {phase(live, pod) for pod in pods} == {Phase.DELETED})
        ends = time.monotonic() + 10.2
        while time.monotonic() < ends:
            assert {phase(live, pod) for pod in pods} == {Phase.DELETED}
            time.sleep(0.1)
        live.do(Controller.resume)
        ended = live.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert live.starts == dict.fromkeys(pods, 2)
    assert [text for text in ended.said if "deleted" not in text] == [
        "PyTorchJob demo is suspended.",
        "PyTorchJob demo is resumed.",
        "PyTorchJob demo is successfully completed.",
    ]


def test_a_resumed_job_has_its_whole_deadline(tmp_path: Path) -> None:
    script = starting(tmp_path, "echo up; exec sleep 60", "echo again; exec sleep 60")
    with Live(load(tmp_path, pytorchjob(script, runPolicy=RUNNING | {"activeDeadlineSeconds": 10}))) as live:
        live.until("up")
        live.do(Controller.suspend)
        wait_until(lambda: phase(live, "demo-master-0") is Phase.DELETED)
        resumed = time.monotonic()
        live.do(Controller.resume)
        live.until("again")
        assert live.end().verdict.outcome is Outcome.FAILED
    assert time.monotonic() - resumed >= 10


def test_a_suspended_job_can_be_interrupted(tmp_path: Path) -> None:
    with Live(load(tmp_path, pytorchjob("echo up; exec sleep 60"))) as live:
        live.until("up")
        live.do(Controller.suspend)
        wait_until(lambda: phase(live, "demo-master-0") is Phase.DELETED)
        live.do(lambda controller: controller.interrupt(signal.SIGINT))
        assert live.end().verdict.outcome is Outcome.INTERRUPTED
    assert live.starts == {"demo-master-0": 1}


@pytest.mark.parametrize(("policy", "outcome"), [("OnFailure", Outcome.SUCCEEDED), ("Never", Outcome.FAILED)])
def test_a_killed_pod_restarts_as_its_policy_says(tmp_path: Path, policy: str, outcome: Outcome) -> None:
    worker = starting(tmp_path, "sleep 1000 & echo up; wait", f"touch {tmp_path}/go")
    with Live(load(tmp_path, pytorchjob(waiting(tmp_path / "go"), worker, policy=policy, runPolicy=RUNNING))) as live:
        live.until("up")
        live.do(lambda controller: controller.kill(WORKER))
        live.until(f"{WORKER} ended with exit code 137: restart 1" if policy == "OnFailure" else "exit code 137")
        assert live.end().verdict.outcome is outcome


def test_a_frozen_pod_stands_still_until_it_is_thawed(tmp_path: Path) -> None:
    family = (
        f"(setsid sleep 1000 & echo $! >>{tmp_path}/pids); sleep 1000 & echo $! $BASHPID >>{tmp_path}/pids; echo up;"
    )
    with Live(load(tmp_path, pytorchjob(f"{family} {waiting(tmp_path / 'go')}", "exec sleep 60"))) as live:
        live.until("up")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        live.do(lambda controller: controller.freeze("demo-master-0"))
        wait_until(lambda: {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED})
        live.do(lambda controller: controller.thaw("demo-master-0"))
        wait_until(lambda: psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in pids})
