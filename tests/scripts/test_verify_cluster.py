"""The real Kubernetes client against an API server that answers as told; the real cluster's turn is in tests/e2e."""

import copy
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bruteforce
import pytest
import seen
from answering import JOB, LAST, LINES, NODES, PODS, TRAIN_JOB, UNKNOWN, Server, kubeconfig, pod, refusal
from kubernetes.config import kube_config

from torchtally.commands.verify import main

Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """The exit status, and what was said: on standard error only where the status is 2."""

    def verified(*args: str) -> tuple[int, str]:
        status = main(["--job", "demo", *args])
        out, err = capsys.readouterr()
        assert bool(err) == (status == 2) and bool(out) == (status != 2)
        return status, out + err

    return verified


def test_pods_are_asked_for_by_name(server: Server, verify: Verify) -> None:
    server.proves()
    status, said = verify("-n", "trial")
    assert (status, said.count("✓ every sample exactly once"), said.count("note:")) == (0, 4, 0)
    logs = [path for name in PODS for path in (pod(name), pod(name) + "/log?container=pytorch")]
    assert server.asked == [JOB, *logs]


def test_the_namespace_is_that_of_the_context(server: Server, verify: Verify) -> None:
    server.proves()
    assert verify()[0] == 0
    status, said = verify("--context", "second")
    assert status == 2 and "PyTorchJob or TrainJob demo in namespace default" in said
    assert verify("--context", "second", "-n", "trial")[0] == 0
    status, said = verify("--context", "third")
    assert status == 2 and said.startswith("torchtally verify: cannot use the context third: ")


def test_a_job_of_a_master_alone(server: Server, verify: Verify) -> None:
    server.job["spec"]["pytorchReplicaSpecs"] = {"Master": {}}
    alone = bruteforce.run(world=1)
    server.log("demo-master-0", bruteforce.text([*alone, bruteforce.last(alone)]))
    assert verify()[0] == 0
    assert server.asked[1:] == [pod("demo-master-0"), pod("demo-master-0") + "/log?container=pytorch"]


def test_the_termination_message_has_the_last_line_where_the_log_is_rotated(server: Server, verify: Verify) -> None:
    server.log("demo-master-0", bruteforce.text(LINES[-1:]))
    line = bruteforce.text([LAST])

    def ended(container: str, message: str) -> None:
        common = {"image": "", "imageID": "", "ready": False, "restartCount": 0}
        state = {"terminated": {"exitCode": 0, "message": message}}
        server.phase("demo-master-0", "Succeeded", containerStatuses=[{"name": container, "state": state, **common}])

    for container, message, status in (("pytorch", line, 0), ("pytorch", line[:-9], 3), ("sidecar", line, 3)):
        ended(container, message)
        assert verify()[0] == status
    ended("pytorch", line.replace('"consumed":', '"consumed":1'))
    assert verify()[0] == 1


NO_POD = {pod("demo-worker-1"): refusal(404, 'pods "demo-worker-1" not found', "demo-worker-1")}
GONE = "pod demo-worker-1 is gone, and its log with it (the job's cleanPodPolicy is {}; None keeps pods)"


def test_a_pod_that_is_gone(server: Server, verify: Verify) -> None:
    server.job["spec"]["runPolicy"]["cleanPodPolicy"] = "All"
    server.answers |= NO_POD
    status, said = verify()
    assert status == 3
    assert f"✗ {GONE.format('All')}\n" in said and "✗ no tally line of rank 2 at all\n" in said


def test_a_pod_that_is_gone_where_the_last_line_is_there(server: Server, verify: Verify) -> None:
    server.proves()
    server.answers |= NO_POD
    server.phase("demo-worker-2", "Pending")  # a node was lost after the end
    status, said = verify()
    assert status == 0
    for what in GONE.format("None"), "pod demo-worker-2 has not started", "no tally line of ranks 2-3 at all":
        assert f"note: {what}; the run's last line is proof enough\n" in said
    assert verify("--expect-per-pod", "15")[0] == 3


def test_pods_that_are_not_there_yet_or_have_not_started(server: Server, verify: Verify) -> None:
    server.state("Created", "Running")
    server.answers |= NO_POD
    common = {"image": "", "imageID": "", "ready": False, "restartCount": 0}
    waiting = [{"name": "pytorch", "state": {"waiting": {"reason": "ImagePullBackOff"}}, **common}]
    server.phase("demo-worker-0", "Pending", containerStatuses=waiting)
    begun = {"name": "init-pytorch", "state": {"running": {}}, **common}
    waiting = [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}, **common}]
    server.phase("demo-worker-2", "Pending", initContainerStatuses=[begun], containerStatuses=waiting)
    server.phase("demo-master-0", "Pending")
    status, said = verify()
    assert status == 4
    assert [line for line in said.splitlines() if " pod demo" in line] == [
        "✗ pod demo-master-0 has not started",
        "✗ pod demo-worker-0 has not started (ImagePullBackOff)",
        "✗ pod demo-worker-1 does not exist (the job is Running)",
        "✗ pod demo-worker-2 has not started (init-pytorch runs)",
    ]
    assert "note: job demo has not ended (Running): later lines are missing\n" in said
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    server.phase("demo-worker-1", "Pending", conditions=[unscheduled])
    assert "✗ pod demo-worker-1 has not started (Unschedulable)\n" in verify()[1]


def test_a_pod_that_outlives_the_job(server: Server, verify: Verify) -> None:
    server.phase("demo-worker-1", "Running")
    said = "note: pod demo-worker-1 is still running: later lines are missing\n"
    assert said in verify()[1]
    server.state("Running")
    assert said not in verify()[1]  # it goes without saying


def test_a_pod_without_a_log(server: Server, verify: Verify) -> None:
    message = 'container "pytorch" in pod "demo-worker-1" is waiting to start: ContainerCreating'
    server.answers[LOG] = refusal(400, message)
    status, said = verify()
    assert status == 3 and f"✗ pod demo-worker-1 has no log yet: {message}\n" in said


def test_a_job_that_failed_or_has_no_status(server: Server, verify: Verify) -> None:
    server.proves()
    server.state("Created", "Failed", message="PyTorchJob demo is failed because 1 Worker replica(s) failed.")
    status, said = verify()
    assert status == 0  # every shard is proved all the same
    assert "note: job demo has failed: PyTorchJob demo is failed because 1 Worker replica(s) failed.\n" in said
    del server.job["status"]
    assert "note: job demo has not ended (no status yet): " in verify()[1]


LOG = pod("demo-worker-1") + "/log?container=pytorch"
MISSING = refusal(404, 'pytorchjobs.kubeflow.org "demo" not found', "demo")
NO_TRAIN_JOB = refusal(404, 'trainjobs.trainer.kubeflow.org "demo" not found', "demo")
ROLE = "in namespace trial: a role must allow get on"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({LOG: refusal(403, "no")}, f"forbidden to read the log of pod demo-worker-1 {ROLE} pods/log ("),
        ({JOB: refusal(403, "no")}, f"forbidden to read PyTorchJob demo {ROLE} pytorchjobs.kubeflow.org ("),
        ({JOB: MISSING}, "no PyTorchJob demo in namespace trial (ttlSecondsAfterFinished deletes old ones) [T23]"),
        ({JOB: MISSING, TRAIN_JOB: NO_TRAIN_JOB}, "no PyTorchJob or TrainJob demo in namespace trial"),
        ({JOB: UNKNOWN}, "this cluster does not know PyTorchJobs or TrainJobs: is the training operator or Kubeflow "),
        ({JOB: refusal(401, "Unauthorized")}, "cannot read PyTorchJob demo in namespace trial: 401 Unauthorized [T23]"),
    ],
)
def test_what_cannot_be_read(server: Server, verify: Verify, answers: dict[str, Any], said: str) -> None:
    server.answers |= answers
    status, found = verify()
    assert status == 2 and found.startswith(f"torchtally verify: {said}")


def test_a_log_that_breaks_off(server: Server, verify: Verify, monkeypatch: Any) -> None:
    original = copy.copy(Server.answer)

    def broken(self: Server, handler: BaseHTTPRequestHandler) -> None:
        if handler.path != LOG:
            original(self, handler)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"TORCHTALLY {\n" * 10)

    monkeypatch.setattr(Server, "answer", broken)
    status, said = verify()
    assert status == 2 and said.startswith("torchtally verify: the log of pod demo-worker-1 was interrupted: ")


def test_a_cluster_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify, caplog: Any
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    kubeconfig(tmp_path, monkeypatch, port)
    status, said = verify()
    assert status == 2 and said.startswith(f"torchtally verify: cannot reach the cluster at http://127.0.0.1:{port}: ")
    assert not caplog.records  # nothing is tried again, with a warning each


def test_no_cluster_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    status, said = verify()
    assert status == 2 and said.startswith(
        "torchtally verify: no cluster: not in a pod with a service account, and no "
    )


def train_job(server: Server, *nodes: tuple[int, str], state: str = "Complete", count: int = 4) -> None:
    """A TrainJob in place of the PyTorchJob, whose pods are (node, letter) in order of age."""
    conditions = [{"type": state, "status": "True"}] if state else []
    server.answers[JOB] = UNKNOWN
    server.answers[TRAIN_JOB] = (
        200,
        {
            "metadata": {"name": "demo", "namespace": "trial"},
            "spec": {"trainer": {"numNodes": count}},
            "status": {"conditions": conditions, "jobsStatus": [{"name": "node", "active": 0 if state else 1}]},
        },
    )
    pods = []
    for age, (node, letter) in enumerate(nodes):
        name = f"demo-node-0-{node}-{letter * 5}"
        labels = {"batch.kubernetes.io/job-completion-index": str(node)}
        made = f"2026-01-01T00:00:{age:02}Z"
        pods.append({"metadata": {"name": name, "creationTimestamp": made, "labels": labels}})
        server.phase(name, "Succeeded")
        mine = [line for line in LINES if line["pod"] == PODS[node]]
        server.answers[pod(name) + "/log?container=node"] = 200, bruteforce.text(mine)
    server.answers[NODES] = 200, {"kind": "PodList", "items": pods[::-1]}


def test_the_last_pod_of_each_node_of_a_train_job_counts(server: Server, verify: Verify) -> None:
    train_job(server, (0, "a"), (1, "z"), (1, "b"), (2, "c"), (3, "d"))
    log = pod("demo-node-0-0-aaaaa") + "/log?container=node"
    server.answers[log] = 200, server.answers[log][1] + bruteforce.text([LAST])
    server.answers.pop(pod("demo-node-0-1-zzzzz"))
    status, said = verify()
    assert (status, said.count("✓ every sample exactly once"), "has not ended" in said) == (0, 4, False)


def test_a_node_without_a_pod(server: Server, verify: Verify) -> None:
    train_job(server, (0, "a"), (1, "b"), (3, "d"), state="")
    server.answers[pod("demo-node-0-2")] = refusal(404, 'pods "demo-node-0-2" not found', "demo-node-0-2")
    status, said = verify()
    assert status == 4
    assert "✗ pod demo-node-0-2 does not exist (the job is Running)\n" in said
    assert "note: job demo has not ended (Running): " in said


def test_pods_that_may_not_be_listed(server: Server, verify: Verify) -> None:
    train_job(server)
    server.answers.pop(NODES)
    status, said = verify()
    assert status == 2 and "the pods of TrainJob demo in namespace trial: a role must allow list on pods (" in said


def batch(server: Server, kind: str, status: dict[str, Any], labels: list[dict[str, str]]) -> None:
    """A job of one of Kubernetes' own kinds, with a pod for each of these sets of labels."""
    template = {"spec": OBSERVED}
    group, selector, spec = {
        "Job": ("batch/v1", "batch.kubernetes.io/job-name", {"template": template}),
        "JobSet": (
            "jobset.x-k8s.io/v1alpha2",
            "jobset.sigs.k8s.io/jobset-name",
            {"replicatedJobs": [{"template": {"spec": {"template": template}}}]},
        ),
    }[kind]
    found = {"metadata": {"name": "demo", "namespace": "trial"}, "spec": spec, "status": status}
    server.answers[JOB] = refusal(404, "not found", "demo")
    server.answers[f"/apis/{group}/namespaces/trial/{kind.lower()}s/demo"] = 200, found
    pods = []
    for age, own in enumerate(labels):
        made = f"2026-01-01T00:00:{age:02}Z"
        metadata = {"name": f"demo-{age}", "creationTimestamp": made, "labels": own}
        pods.append({"metadata": metadata, "spec": OBSERVED})
        server.phase(f"demo-{age}", "Succeeded")
    launcher = {"name": "demo-launcher", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}}
    pods.append({"metadata": launcher, "spec": {"containers": [{"name": "launch"}]}})  # is not observed
    server.answers[f"/api/v1/namespaces/trial/pods?labelSelector={selector}%3Ddemo"] = 200, {"items": pods}


OBSERVED = {
    "containers": [
        {"name": "proxy"},
        {"name": "train", "volumeMounts": [{"name": "torchtally-observer", "mountPath": "/x"}]},
    ],
    "volumes": [{"name": "torchtally-observer"}],
}
INDEX, SET = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"


@pytest.mark.parametrize(("kind", "label", "end"), [("Job", INDEX, "Complete"), ("JobSet", SET, "Completed")])
def test_kinds_of_kubernetes_itself_are_observed(
    server: Server, verify: Verify, kind: str, label: str, end: str
) -> None:
    ended = {"conditions": [{"type": end, "status": "True"}]}
    batch(server, kind, ended, [{label: "0"}, {label: "1"}, {label: "1"}])  # the second was made anew
    for place, name in enumerate(("demo-0", "demo-2")):
        server.answers[f"{pod(name)}/log?container=train"] = 200, seen.line(place, seen.RIGHT[place])
    assert verify()[0] == 0
    running = {"active": 2, "replicatedJobsStatus": [{"active": 2}]}
    batch(server, kind, running, [{label: "0"}, {label: "1"}, {label: "1"}])
    status, said = verify()
    assert status == 4 and f"{kind} demo is running" in said


def test_a_pod_that_carries_the_observer_and_is_silent(server: Server, verify: Verify) -> None:
    batch(server, "Job", {"conditions": [{"type": "Complete", "status": "True"}]}, [{}])
    server.answers[pod("demo-0")] = 200, {"kind": "Pod", "spec": OBSERVED, "status": {"phase": "Succeeded"}}
    server.answers[f"{pod('demo-0')}/log?container=train"] = 200, "trained\n"
    status, said = verify()
    assert status == 3 and "pod demo-0 has the observer, and no line of it: its program imports no torch" in said
