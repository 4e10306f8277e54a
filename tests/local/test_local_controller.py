"""Restarts, limits, the job's outcome and cleaning up, with real pods."""

from pathlib import Path

import pytest
from livejobs import Live, run
from localjobs import Run, load, pod_spec, pytorchjob

from torchtally.local.controller import Outcome, Phase

pytestmark = pytest.mark.timeout(300)  # a job that does not end

SUCCEEDED = "PyTorchJob demo is successfully completed."
BACKOFF = "Job demo has failed because it has reached the specified backoff limit"


def failing(folder: Path, times: int, end: str = "exit 1") -> str:
    """A script that fails so often, and then succeeds."""
    return f"echo x >>{folder}/$HOSTNAME; test $(wc -l <{folder}/$HOSTNAME) -gt {times} || {end}"


def starts(folder: Path, pod: str = "demo-master-0") -> int:
    return len((folder / pod).read_text().split())


def phases(ended: Run) -> dict[str, Phase]:
    return {name.removeprefix("demo-"): status.phase for name, status in ended.status.items()}


@pytest.mark.parametrize(
    ("policy", "end", "outcome", "started", "message"),
    [
        (None, "exit 1", Outcome.SUCCEEDED, 3, SUCCEEDED),
        ("OnFailure", "exit 1", Outcome.SUCCEEDED, 3, SUCCEEDED),
        ("Never", "exit 1", Outcome.FAILED, 1, "PyTorchJob demo is failed because 1 Master replica(s) failed."),
        ("ExitCode", "exit 127", Outcome.FAILED, 1, 'job "demo" is failing because "Master" replica(s) failed.'),
        ("ExitCode", "exit 128", Outcome.SUCCEEDED, 3, SUCCEEDED),
        ("ExitCode", "kill -9 $BASHPID", Outcome.SUCCEEDED, 3, SUCCEEDED),
    ],
)
def test_restart_policy(
    tmp_path: Path, policy: str | None, end: str, outcome: Outcome, started: int, message: str
) -> None:
    ended = run(tmp_path, pytorchjob(failing(tmp_path, 2, end), policy=policy))
    assert (ended.verdict.outcome, ended.verdict.message) == (outcome, message)
    assert starts(tmp_path) == started
    assert ended.status["demo-master-0"].restarts == started - 1
    assert ended.said[-1] == message


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "echo first; echo \"No module named 'mine'\"; echo 'TORCHTALLY {}'; echo 'TORCHTALLY-OBSERVED {}'",
            "its last line was: No module named 'mine'",
        ),
        ("true", "it has printed nothing"),
    ],
)
def test_after_three_restarts_the_last_line_is_shown_once(tmp_path: Path, printed: str, said: str) -> None:
    ended = run(tmp_path, pytorchjob(f"{printed}; {failing(tmp_path, 4)}", policy="OnFailure"))
    assert starts(tmp_path) == 5  # as in a cluster
    told = f"demo-master-0 has ended 3 times, and restarts as it would in a cluster; {said}"
    assert [text for text in ended.said if "3 times" in text] == [told]
    assert ended.said.index(told) == 1 + ended.said.index(
        "demo-master-0 ended with exit code 1: restart 3 (restartPolicy OnFailure)"
    )


def test_always_restarts_what_succeeded(tmp_path: Path) -> None:
    ended = run(tmp_path, pytorchjob(failing(tmp_path, 0), policy="Always", runPolicy={"backoffLimit": 2}))
    assert (ended.verdict.message, starts(tmp_path)) == (BACKOFF, 2)


@pytest.mark.parametrize(("limit", "started"), [(0, 1), (1, 1), (3, 3)])
def test_backoff_limit(tmp_path: Path, limit: int, started: int) -> None:
    ended = run(tmp_path, pytorchjob(failing(tmp_path, 99), runPolicy={"backoffLimit": limit}))
    assert (ended.verdict.outcome, ended.verdict.message) == (Outcome.FAILED, BACKOFF)
    assert starts(tmp_path) == started


def test_backoff_limit_sums_the_restarts_of_running_pods(tmp_path: Path) -> None:
    master = f"until test $(cat {tmp_path}/demo-worker-* | wc -l) -ge 3; do sleep 0.05; done; exec sleep 60"
    policy = {"backoffLimit": 2, "cleanPodPolicy": "All"}
    ended = run(tmp_path, pytorchjob(master, failing(tmp_path, 99), workers=2, runPolicy=policy))
    assert ended.verdict.message == BACKOFF
    assert sum(status.restarts for status in ended.status.values()) == 2


@pytest.mark.parametrize(("limit", "message"), [(1, SUCCEEDED), (0, BACKOFF)])
def test_backoff_limit_counts_no_pod_that_is_made_anew(tmp_path: Path, limit: int, message: str) -> None:
    """And one of 0 takes no failure."""
    job = pytorchjob(failing(tmp_path, 2, "exit 200"), policy="ExitCode", runPolicy={"backoffLimit": limit})
    assert run(tmp_path, job).verdict.message == message


@pytest.mark.parametrize("policy", ["All", "Running"])
def test_clean_pod_policy_ends_what_still_runs(tmp_path: Path, policy: str) -> None:
    master = f"until test -e {tmp_path}/up; do sleep 0.05; done"
    worker = f"trap 'echo asked to end; exit 0' TERM; touch {tmp_path}/up; sleep 60 & wait"
    ended = run(tmp_path, pytorchjob(master, worker, runPolicy={"cleanPodPolicy": policy}))
    assert (ended.verdict.outcome, phases(ended)["worker-0"]) == (Outcome.SUCCEEDED, Phase.DELETED)
    assert "[demo-worker-0] asked to end" in ended.lines


def test_clean_pod_policy_none_waits_for_what_still_runs(tmp_path: Path) -> None:
    worker = f"until test -e {tmp_path}/go; do sleep 0.05; done; sleep 1; echo by itself"
    with Live(load(tmp_path, pytorchjob("true", worker))) as live:
        live.until("cleanPodPolicy None leaves 1 pod running: waiting until they end")
        (tmp_path / "go").touch()
        ended = live.end()
    assert (ended.verdict.outcome, phases(ended)["worker-0"]) == (Outcome.SUCCEEDED, Phase.SUCCEEDED)
    assert "[demo-worker-0] by itself" in ended.lines


def test_clean_pod_policy_none_does_not_wait_for_ever_on_a_failed_job(tmp_path: Path) -> None:
    job = pytorchjob("exit 3", "exec sleep 60", policy="Never")
    for kind in ("Master", "Worker"):
        pod_spec(job, kind)["terminationGracePeriodSeconds"] = 1
    ended = run(tmp_path, job)
    assert (ended.verdict.outcome, phases(ended)["worker-0"]) == (Outcome.FAILED, Phase.DELETED)
    assert "cleanPodPolicy None leaves 1 pod running: they are stopped here after 1 s" in ended.said
    assert ended.status["demo-worker-0"].exit_code == 128 + 15


def test_a_pod_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    master = f"until test -e {tmp_path}/up; do sleep 0.05; done"
    worker = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 60; done"
    job = pytorchjob(master, worker, runPolicy={"cleanPodPolicy": "Running"})
    pod_spec(job, "Worker")["terminationGracePeriodSeconds"] = 1
    assert run(tmp_path, job).status["demo-worker-0"].exit_code == 128 + 9


def test_without_a_master_all_workers_must_succeed(tmp_path: Path) -> None:
    script = f"test $HOSTNAME = demo-worker-0 && exit 0; {failing(tmp_path, 1)}"
    ended = run(tmp_path, pytorchjob(worker=script, workers=3))
    assert ended.verdict.message == "PyTorchJob default/demo successfully completed."
    assert set(phases(ended).values()) == {Phase.SUCCEEDED}
    assert starts(tmp_path, "demo-worker-2") == 2


def test_of_elastic_workers_one_is_enough(tmp_path: Path) -> None:
    script = "test $HOSTNAME = demo-worker-1 || exec sleep 60"
    job = pytorchjob(worker=script, workers=2, elasticPolicy={}, runPolicy={"cleanPodPolicy": "Running"})
    ended = run(tmp_path, job)
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert phases(ended) == {"worker-0": Phase.DELETED, "worker-1": Phase.SUCCEEDED}


def test_a_worker_s_failure_fails_the_job(tmp_path: Path) -> None:
    job = pytorchjob("exec sleep 60", "exit 3", workers=2, policy="Never", runPolicy={"cleanPodPolicy": "All"})
    ended = run(tmp_path, job)
    assert ended.verdict.message in [
        f"PyTorchJob demo is failed because {count} Worker replica(s) failed." for count in (1, 2)
    ]
    assert phases(ended)["master-0"] is Phase.DELETED


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    job = pytorchjob("true", policy="Never")
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["command"] = ["no-such-command"]
    ended = run(tmp_path, job)
    assert ended.lines == ["[demo-master-0] exec: 'no-such-command': No such file or directory"]
    assert ended.status["demo-master-0"].exit_code == 128
