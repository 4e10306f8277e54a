"""Jobs of both kinds in a queue of the real Kueue, which starts them when there is quota for all their pods."""

import json
from collections.abc import Iterator

import nodes
import pytest
from cluster import CHART, Namespace, args, data_values, run, stays, verify, wait_for
from faults import MASTER, MID_EPOCH, held

from torchtally import events

GROUP = "kueue.x-k8s.io/v1beta2"
VALUES = ["--values", str(CHART / "ci/kueue-values.yaml")]
OF_ONE_JOB = 2  # its pods, by which the quota is counted
LINUX = {"kubernetes.io/os": "linux"}  # where Kueue puts them


@pytest.fixture
def queue(kueue: None, namespace: Namespace) -> Iterator[None]:
    """A queue with quota for one job of two pods, in which higher priority preempts."""
    name = namespace.name
    quota = {"pods": OF_ONE_JOB, "cpu": 100, "memory": "100Gi"}  # what pods ask for has to be counted, too
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    covered = [{"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}]
    cluster_queue = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "resourceGroups": covered,
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    for kind, of, more in (
        ("ResourceFlavor", name, {"spec": {"nodeLabels": LINUX}}),
        ("ClusterQueue", name, {"spec": cluster_queue}),
        ("LocalQueue", "training", {"spec": {"clusterQueue": name}}),
        ("WorkloadPriorityClass", "low", {"value": 1}),
        ("WorkloadPriorityClass", "high", {"value": 1000}),
    ):
        manifest = json.dumps({"apiVersion": GROUP, "kind": kind, "metadata": {"name": of}, **more})
        run("kubectl", "--namespace", name, "apply", "--filename=-", text=manifest)
    yield
    for kind in ("pytorchjob", "trainjob", "localqueue"):
        namespace.kubectl("delete", kind, "--all")
    run("kubectl", "delete", "clusterqueue,resourceflavor", name)
    run("kubectl", "delete", "workloadpriorityclass", "low", "high")


def submit(namespace: Namespace, release: str, *options: str, epochs: int = 1) -> None:
    training = args("--epochs", str(epochs), "--batch-size", "125", "--save-seconds", "0.2")
    namespace.install(*VALUES, "--set=workers=1", *training, *options, release=release)


def pods(namespace: Namespace, release: str) -> set[str]:
    return {name for name in namespace.list("pod") if name.startswith(f"{release}-")}


def quota_of(namespace: Namespace, job: str) -> str:
    """Whether the job's workload has quota: True, False, or nothing where Kueue has not said."""
    for name, workload in namespace.list("workloads.kueue.x-k8s.io").items():
        if f"-{job}-" in name:
            conditions = workload.get("status", {}).get("conditions", [])
            return "".join(each["status"] for each in conditions if each["type"] == "QuotaReserved")
    return ""


def test_the_second_job_waits_for_the_first_under_the_restricted_standard(
    restricted_operator: None, queue: None, namespace: Namespace
) -> None:
    namespace.restrict()
    with nodes.claimed_data(namespace) as data:
        submit(namespace, "demo", *data, epochs=2)
        with held(namespace, MASTER, "mid-epoch:1"):
            submit(namespace, "second", "--set=api=trainjob,model.enabled=false", *data)
            wait_for("Kueue to look at the second job", lambda: "False" in quota_of(namespace, "second"))
            stays("the second job without pods", 5, lambda: not pods(namespace, "second"))
        namespace.wait_for_job("demo", "Succeeded")
        namespace.wait_for_job("second", "Complete", kind="trainjob")
        for job in ("demo", "second"):
            assert sorted(verify(namespace, job=job)["train", 1].values()) == [[n, 30000, 30000, 0, 0] for n in (0, 1)]


def test_a_preempted_job_goes_on_with_its_proof_intact(queue: None, policies: None, namespace: Namespace) -> None:
    priority = "labels.kueue\\.x-k8s\\.io/priority-class"
    submit(namespace, "demo", f"--set={priority}=low", *data_values(), epochs=3)
    with held(namespace, MASTER, MID_EPOCH):
        submit(namespace, "urgent", f"--set={priority}=high", *data_values())
        wait_for("the first job to be preempted", lambda: "Suspended" in namespace.conditions("demo"))
    namespace.wait_for_job("urgent", "Succeeded")
    verify(namespace, job="urgent")
    namespace.wait_for_job("demo", "Succeeded")
    # Its first pods took their logs with them: of what these proved the run's last line tells.
    assert sorted(verify(namespace)["train", 3].values()) == [[n, 30000, 30000, 0, 0] for n in (0, 1)]
    assert namespace.reported(MASTER, events.Resumed)
    job = namespace.list("pytorchjob")["demo"]["spec"]["pytorchReplicaSpecs"]
    assert job["Worker"]["template"]["spec"]["nodeSelector"] == LINUX  # a change that the policies leave to Kueue
