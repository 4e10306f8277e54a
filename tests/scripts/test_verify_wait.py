"""`--wait`: the job has ended before its lines are judged, whatever happens meanwhile."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from answering import JOB, PODS, TRAIN_JOB, Server, pod, refusal
from kubernetes.config import kube_config

from torchtally import console
from torchtally.cluster import wait
from torchtally.commands import verify

SCRIPT = Path(__file__).parents[2] / "scripts/verify_shards.py"
NONE = refusal(404, 'pytorchjobs.kubeflow.org "demo" not found', "demo")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "_INTERVAL", 0.0)


@pytest.fixture
def waiting(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, str, list[str]]]:
    """Status, output, and progress where the job is asked for and each of these is done before the answer."""

    def run(
        *turns: Callable[[], None], path: str = JOB, seconds: str = "9e9", proves: bool = True
    ) -> tuple[int, str, list[str]]:
        left = list(turns)
        if proves:
            server.proves()
        original = Server.answer

        def answer(self: Server, handler: BaseHTTPRequestHandler) -> None:
            if handler.path == path and left:
                left.pop(0)()
            original(self, handler)

        monkeypatch.setattr(Server, "answer", answer)
        status = verify.main(["--job", "demo", "--wait", seconds])
        out, err = capsys.readouterr()
        assert not left
        return status, out, [line.partition(" [T")[0] for line in err.splitlines()]

    return run


def proved(server: Server) -> None:
    server.proves()


def answers(server: Server, *answer: Any) -> Callable[[], None]:
    return lambda: server.answers.update({JOB: answer})


def state(server: Server, *kinds: str) -> Callable[[], None]:
    def change() -> None:
        server.answers[JOB] = 200, server.job
        server.state(*kinds)

    return change


def test_a_wait_has_its_limit(server: Server, waiting: Any) -> None:
    server.log(PODS[0], "")
    status, out, progress = waiting(state(server, "Created", "Running"), seconds="0", proves=False)
    assert (status, progress) == (4, []) and "pending: PyTorchJob demo is running" in out
    status, _, progress = waiting(answers(server, *refusal(404, "not found", "demo")), seconds="0")
    assert status == 2 and "no PyTorchJob demo in namespace trial" in progress[-1]


def test_the_lines_are_read_when_the_job_has_ended(server: Server, waiting: Any) -> None:
    def end() -> None:
        state(server, "Created", "Succeeded")()
        proved(server)

    for name in PODS:
        server.log(name, "")
    running = state(server, "Created", "Running")
    status, out, progress = waiting(state(server, "Created"), running, running, end)
    assert (status, "has not ended" in out) == (0, False)  # the last line alone is proof enough
    assert progress == [f"torchtally verify: waiting: PyTorchJob demo is {each}" for each in ("starting", "running")]


def test_a_job_that_fails_ends_the_wait(server: Server, waiting: Any) -> None:
    for name in PODS[1:]:
        server.log(name, "")
    status, out, _ = waiting(state(server, "Running"), state(server, "Created", "Failed"), proves=False)
    assert status == 5 and "✗ failed: PyTorchJob demo has failed" in out


def test_the_same_state_is_told_now_and_then(server: Server, waiting: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(wait, "_AGAIN", 0.0)
    running = state(server, "Running")
    assert len(waiting(running, running, running, state(server, "Succeeded"))[2]) == 3


def test_a_job_that_is_created_after_the_verifier(server: Server, waiting: Any) -> None:
    missing = answers(server, *NONE)
    status, _, progress = waiting(missing, missing, state(server, "Created"), state(server, "Succeeded"))
    assert status == 0
    assert progress[0].startswith("torchtally verify: waiting for the job: no PyTorchJob demo in namespace trial (")
    assert progress[1:] == ["torchtally verify: waiting: PyTorchJob demo is starting"]


def test_a_job_that_never_comes(server: Server, waiting: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(wait, "_CREATED_WITHIN", 0.0)
    status, out, progress = waiting(answers(server, *NONE))
    assert (status, out) == (2, "")
    assert progress == [
        "torchtally verify: no PyTorchJob demo in namespace trial (ttlSecondsAfterFinished deletes old ones)"
    ]


def test_a_job_that_is_deleted(server: Server, waiting: Any) -> None:
    """The pods of one that is made anew have the names of the deleted job's."""

    def another() -> None:
        server.job["metadata"]["uid"] = "another"

    said = "torchtally verify: PyTorchJob demo in namespace trial was deleted while it was running"
    for change, more in (answers(server, *NONE), ""), (another, ", and another one of that name exists"):
        status, out, progress = waiting(state(server, "Running"), change)
        assert (status, out, progress[-1]) == (2, "", said + more)


@pytest.mark.parametrize("answer", [refusal(503, "etcd is away"), refusal(429, "too many")])
def test_an_api_server_that_is_away(server: Server, waiting: Any, answer: Any) -> None:
    running, away = state(server, "Running"), answers(server, *answer)
    status, _, progress = waiting(running, away, away, running, state(server, "Succeeded"))
    assert status == 0
    assert [re.sub(r"\(.*", "", each)[:39] for each in progress] == [
        "torchtally verify: waiting: PyTorchJob ",
        "torchtally verify: trying again: cannot",
        "torchtally verify: waiting: PyTorchJob ",
    ]


def test_a_connection_that_breaks_off(server: Server, waiting: Any, monkeypatch: Any) -> None:
    original, left = Server.answer, [1, 1]

    def cut(self: Server, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == JOB and left:
            left.pop()
            handler.close_connection = True
        else:
            original(self, handler)

    monkeypatch.setattr(Server, "answer", cut)
    status, _, progress = waiting()
    assert status == 0 and len(progress) == 1
    assert progress[0].startswith("torchtally verify: trying again: cannot reach the cluster at http://127.0.0.1:")


def test_a_train_job_is_not_missing_while_only_its_kind_is_away(server: Server, waiting: Any) -> None:
    """Of the two kinds, the API server knows that there is no PyTorchJob, and not yet whether there is a TrainJob."""
    server.answers[JOB] = NONE
    server.answers[TRAIN_JOB] = refusal(503, "not now")

    def back() -> None:
        server.answers[JOB] = 200, server.job

    status, _, progress = waiting(lambda: None, back)
    assert status == 0 and "cannot read TrainJob demo" in progress[0]


def test_no_access_is_no_reason_to_wait(server: Server, waiting: Any) -> None:
    server.answers.pop(JOB)
    status, _, [said] = waiting()
    assert status == 2 and said.startswith("torchtally verify: forbidden to read PyTorchJob demo in namespace trial: ")


def test_logs_are_read_again(server: Server, waiting: Any) -> None:
    path = pod(PODS[2]) + "/log?container=pytorch"
    before = server.answers[path]

    def away() -> None:
        server.answers[path] = refusal(503, "not now")

    def back() -> None:
        server.answers[path] = before

    status, out, progress = waiting(away, back, path=path)
    assert status == 0 and out.count("✓ every sample exactly once") == 4  # no line counts twice
    assert progress == [
        "torchtally verify: trying again: cannot read the log of pod demo-worker-1 in namespace trial: 503 not now"
    ]


def test_logs_that_never_come(server: Server, waiting: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(wait, "_READ_WITHIN", 0.0)
    server.answers[pod(PODS[2]) + "/log?container=pytorch"] = refusal(500, "no route to host")
    status, out, [said] = waiting()
    assert (status, out) == (2, "") and said.endswith("500 no route to host")


def test_a_command_leaves_its_process_the_handler_of_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert console.run("torchtally verify", lambda: 0) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_the_wait(server: Server) -> None:
    server.state("Created", "Running")
    environment = {**os.environ, "KUBECONFIG": str(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)}
    command = [sys.executable, str(SCRIPT), "--job", "demo", "--wait"]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr and child.stderr.readline() == "torchtally verify: waiting: PyTorchJob demo is running\n"
    child.terminate()
    assert child.communicate(timeout=300) == ("", "")
    assert child.returncode == 128 + signal.SIGTERM
