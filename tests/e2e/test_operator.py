"""What the training operator ignores or gets wrong, for which the chart refuses values, or says so in its notes.

Once a row fails, with another version of the operator, what the chart says of it is no longer true.
"""

import json
import os
from datetime import UTC, datetime

import pytest
from cluster import CONTAINER, Namespace, Object, pytorchjob, replica, stays, wait_for

pytestmark = pytest.mark.nightly

STAY = ["tini", "sleep", "3600"]
KILLED = ["sh", "-c", "sleep 1; exit 137"]
SUCCEED = ["true"]


def job(
    namespace: Namespace,
    command: list[str],
    *kinds: str,
    policy: Object | None = None,
    restart: str = "OnFailure",
    **spec: object,
) -> None:
    """A job with one pod of each kind, that many fields, and nothing of the chart's."""
    container = {"name": CONTAINER, "image": os.environ["E2E_IMAGE"], "command": command}
    each = replica({"containers": [container], "terminationGracePeriodSeconds": 1}, restart=restart)
    namespace.apply(pytorchjob(dict.fromkeys(kinds, each), runPolicy=policy or {}, **spec))


def change(namespace: Namespace, **what: object) -> None:
    namespace.kubectl("patch", "pytorchjob", "demo", "--type=merge", f"--patch={json.dumps(what)}")


def environment(namespace: Namespace, pod: str) -> dict[str, str]:
    """What the operator has written into its specification."""
    found = wait_for(f"the operator to make {pod}", lambda: namespace.list("pod").get(pod))
    return {each["name"]: each.get("value", "") for each in found["spec"]["containers"][0]["env"]}


def test_a_deadline_has_no_clock(operator: None, namespace: Namespace) -> None:
    job(namespace, STAY, "Master")
    namespace.wait_for_job("demo", "Running")
    started = datetime.fromisoformat(namespace.list("pytorchjob")["demo"]["status"]["startTime"])
    deadline = int((datetime.now(UTC) - started).total_seconds()) + 10
    change(namespace, spec={"runPolicy": {"activeDeadlineSeconds": deadline}})
    stays("the job, though its deadline passes", 25, lambda: "Failed" not in namespace.conditions("demo"))
    change(namespace, metadata={"annotations": {"something": "happens"}})
    namespace.wait_for_job("demo", "Failed")
    assert "longer than specified deadline" in namespace.conditions("demo")["Failed"]["message"]


def test_what_exitcode_makes_anew_is_not_counted_for_backofflimit(operator: None, namespace: Namespace) -> None:
    job(namespace, KILLED, "Master", restart="ExitCode", policy={"backoffLimit": 1})
    seen: set[str] = set()

    def again() -> bool:
        seen.update(namespace.uids().values())
        return len(seen) > 3

    wait_for("a fourth pod", again)
    assert "Failed" not in namespace.conditions("demo")


@pytest.mark.parametrize(("policy", "left"), [("None", {"demo-master-0", "demo-worker-0"}), ("All", set())])
def test_the_pods_of_a_job_past_its_backofflimit(
    operator: None, namespace: Namespace, policy: str, left: set[str]
) -> None:
    command = ["sh", "-c", "[ $RANK = 0 ] || exec tini sleep 3600; sleep 5; exit 1"]
    job(namespace, command, "Master", "Worker", policy={"backoffLimit": 1, "cleanPodPolicy": policy})
    namespace.wait_for_job("demo", "Failed")
    assert "backoff limit" in namespace.conditions("demo")["Failed"]["message"]
    wait_for(f"{left or 'no pods'} to be left", lambda: namespace.list("pod").keys() == left)
    stays(f"{left or 'no pods'} left", 5, lambda: namespace.list("pod").keys() == left)


def test_a_master_of_an_elastic_job_is_not_counted(operator: None, namespace: Namespace) -> None:
    job(namespace, STAY, "Master", "Worker", elasticPolicy={"minReplicas": 1, "maxReplicas": 1})
    for pod in ("demo-master-0", "demo-worker-0"):
        assert environment(namespace, pod)["PET_NNODES"] == "1:1"


def test_standalone_is_what_torchrun_cannot_read(operator: None, namespace: Namespace) -> None:
    job(namespace, STAY, "Worker", elasticPolicy={"standalone": True})
    assert environment(namespace, "demo-worker-0")["PET_STANDALONE"] == ""


def test_a_scheduling_policy_is_ignored_without_a_scheduler_for_it(operator: None, namespace: Namespace) -> None:
    job(namespace, STAY, "Master", policy={"schedulingPolicy": {"minAvailable": 99}})
    namespace.wait_for_job("demo", "Running")


def test_a_running_job_keeps_its_pods(operator: None, namespace: Namespace) -> None:
    job(namespace, STAY, "Master")
    namespace.wait_for_job("demo", "Running")
    before = namespace.uids()
    job(namespace, SUCCEED, "Master")
    stays("the pods", 10, lambda: namespace.uids() == before)
    assert "Succeeded" not in namespace.conditions("demo")


def test_an_ended_job_is_neither_suspended_nor_made_larger(operator: None, namespace: Namespace) -> None:
    job(namespace, SUCCEED, "Worker", elasticPolicy={"minReplicas": 1, "maxReplicas": 2})
    namespace.wait_for_job("demo", "Succeeded")
    before = namespace.uids()
    limits = {"suspend": True, "backoffLimit": 9, "activeDeadlineSeconds": 1}
    change(namespace, spec={"runPolicy": limits, "pytorchReplicaSpecs": {"Worker": {"replicas": 2}}})
    stays("the pods", 10, lambda: namespace.uids() == before)
    assert not {"Suspended", "Failed", "Running"} & namespace.conditions("demo").keys()


def test_an_ended_job_is_cleared_away_by_what_it_is_told_then(operator: None, namespace: Namespace) -> None:
    job(namespace, SUCCEED, "Master")
    namespace.wait_for_job("demo", "Succeeded")
    change(namespace, spec={"runPolicy": {"cleanPodPolicy": "All"}})
    wait_for("no pods to be left", lambda: not namespace.list("pod"))
    change(namespace, spec={"runPolicy": {"ttlSecondsAfterFinished": 1}})
    wait_for("no job to be left", lambda: not namespace.list("pytorchjob"))
