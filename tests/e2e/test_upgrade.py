"""What `helm upgrade` does to a job under the real operator, which changes no pod of a job that runs."""

import json
import subprocess

import pytest
from cluster import CHART, KIND_VALUES, Namespace, data_values, image_values, verify, wait_for

from torchtally import events

PODS = {"demo-master-0", "demo-worker-0"}
LONG = ["--epochs", "500", "--batch-size", "1000"]


def values(*arguments: str) -> list[str]:
    return [
        *KIND_VALUES,
        *data_values(),
        *image_values(),
        *("--set", "workers=1", "--set-json", f"args={json.dumps(arguments)}"),
    ]


def upgrade(namespace: Namespace, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return namespace.helm("upgrade", "demo", str(CHART), *options, check=check)


def test_a_running_job_is_changed_or_it_is_said_why_not(operator: None, namespace: Namespace) -> None:
    namespace.helm("install", "demo", str(CHART), *values(*LONG))
    wait_for("the training to begin", lambda: namespace.reported("demo-master-0", events.Begun))
    before = namespace.uids()

    refused = upgrade(namespace, *values("--epochs", "1"), check=False)
    assert refused.returncode != 0
    assert "PyTorchJob demo is running, and the pods of a running job cannot change" in refused.stderr
    job = namespace.list("pytorchjob")["demo"]
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"][2:] == LONG

    upgrade(namespace, *values(*LONG), "--set", "backoffLimit=77")
    assert namespace.list("pytorchjob")["demo"]["spec"]["runPolicy"]["backoffLimit"] == 77
    assert namespace.uids() == before

    # Suspended, it has no pods, and those that it gets afterwards are of the new values.
    upgrade(namespace, *values(*LONG), "--set", "suspend=true")
    wait_for("the pods to be gone", lambda: not namespace.list("pod"))
    changed = [*values("--epochs", "1"), "--set", "model.subPath=other"]
    upgrade(namespace, *changed)
    wait_for("the pods of the new values", lambda: namespace.list("pod").keys() == PODS)
    refused = namespace.helm("rollback", "demo", "1", check=False)
    assert refused.returncode != 0 and "field is immutable" in refused.stderr
    upgrade(namespace, *changed)
    namespace.wait_for_job("demo", "Succeeded")
    assert verify(namespace).keys() == {("train", 1), ("test", 1)}

    # A finished job cannot restart; a new job that replaces it has the same claim.
    refused = upgrade(namespace, *changed, "--set", "suspend=true", check=False)
    assert "PyTorchJob demo has finished and cannot restart, and" in refused.stderr
    assert "ignores changes to suspend:" in refused.stderr
    upgrade(namespace, *changed, "--set", "ttlSecondsAfterFinished=86400")
    assert namespace.list("pytorchjob")["demo"]["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == 86400
    refused = upgrade(namespace, *changed, "--set", "workers=2", check=False)
    assert refused.returncode != 0
    assert "PyTorchJob demo has finished and cannot restart" in refused.stderr
    upgrade(namespace, *changed, "--set", "workers=2,jobNameRevision=true,model.subPath=third")
    (name,) = namespace.list("pytorchjob")
    assert name.startswith("demo-")
    namespace.wait_for_job(name, "Succeeded")
    shards = verify(namespace, job=name)
    assert [numbers[1:3] for numbers in shards["train", 1].values()] == [[20000, 20000]] * 3


@pytest.mark.nightly
def test_a_rollback_brings_back_the_job_of_then(operator: None, namespace: Namespace) -> None:
    def job() -> tuple[str, str]:
        found = wait_for("one job", lambda: len(jobs := namespace.list("pytorchjob")) == 1 and jobs)
        ((name, job),) = found.items()
        return name, job["metadata"]["uid"]

    revisions = ["--set", "jobNameRevision=true"]
    namespace.helm("install", "demo", str(CHART), *values(*LONG), *revisions)
    name, first = job()
    assert name == "demo-1"
    upgrade(namespace, *values(*LONG), *revisions, "--set", "workers=0")
    assert job()[0] == "demo-2"
    namespace.helm("rollback", "demo", "1")
    name, again = job()
    assert name == "demo-1"
    assert again != first


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("phase", "options"),
    [("Running", []), ("Pending", ["--set", "nodeSelector.no=such"])],
    ids=["running", "half-made"],
)
def test_uninstalling_leaves_the_claim_alone(
    operator: None, namespace: Namespace, phase: str, options: list[str]
) -> None:
    before = namespace.everything()
    namespace.helm("install", "demo", str(CHART), *values(*LONG), *options)
    wait_for(
        f"the pods to be {phase}",
        lambda: (pods := namespace.list("pod")).keys() == PODS and pods["demo-master-0"]["status"]["phase"] == phase,
    )
    namespace.helm("uninstall", "demo", "--wait")
    kept = before | {"persistentvolumeclaim/demo-model"}
    wait_for("nothing but the claim to be left", lambda: namespace.everything() == kept)
