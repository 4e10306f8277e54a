"""The chart under the real Argo CD, which runs neither hooks nor upgrades of Helm."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from argo import Application
from cluster import CHART, Namespace, Object, image_parts, verify, wait_for
from faults import MASTER

from torchtally import events

pytestmark = pytest.mark.nightly

LONG = ["--epochs", "500", "--batch-size", "1000"]


@pytest.fixture
def application(argo_cd: None, namespace: Namespace, tmp_path: Path) -> Iterator[Application]:
    application = Application(namespace, tmp_path)
    yield application
    application.delete()


def values(**more: object) -> Object:
    base = yaml.safe_load((CHART / "ci/kind-values.yaml").read_text())
    base |= {"image": image_parts(), "workers": 1}
    if folder := os.environ.get("E2E_DATA"):
        base["data"] = {"hostPath": {"path": f"{folder}/fashion-mnist"}}
    return base | {"verifier": {"job": True}} | more


def messages(ended: Object) -> str:
    objects = ended["syncResult"].get("resources", [])
    return "\n".join([ended["message"], *(each.get("message", "") for each in objects)])


def test_from_the_first_sync_to_a_refused_change_and_another_name(
    application: Application, namespace: Namespace
) -> None:
    first = values(args=LONG, files={"notes": "first"})
    ended = application.sync(first)
    assert ended["phase"] == "Succeeded", messages(ended)
    wait_for("the training to begin", lambda: namespace.reported(MASTER, events.Begun))
    application.wait_for("Synced", "Progressing")  # until the verifier's Job ends
    pods, job = namespace.uids(), namespace.list("pytorchjob")["demo"]["spec"]
    claim = namespace.list("persistentvolumeclaim")["demo-model"]["metadata"]["uid"]
    files = {name for name in namespace.list("configmap") if "-files-" in name}

    refused = application.sync(values(args=["--epochs", "1"], files={"notes": "second"}))
    assert refused["phase"] == "Failed"
    assert 'ConfigMap "demo-pods" is invalid: data: Forbidden: field is immutable' in messages(refused)
    assert namespace.list("pytorchjob")["demo"]["spec"] == job
    assert namespace.uids() == pods
    assert files <= namespace.list("configmap").keys()
    application.wait_for("OutOfSync", "Missing")  # the other files, and the verifier of other pods

    assert application.sync(first)["phase"] == "Succeeded"
    application.wait_for("Synced", "Progressing")

    kept = {"existingClaim": "demo-model", "subPath": "other", "size": "64Mi"}
    # With each key of the values before: Argo CD 3.3 merges those of one sync into those of the next.
    other = values(args=["--epochs", "1"], files={"notes": "first"}, fullnameOverride="second", model=kept)
    ended = application.sync(other)
    assert ended["phase"] == "Succeeded", messages(ended)
    wait_for("the first job to go", lambda: namespace.list("pytorchjob").keys() == {"second"})
    assert namespace.list("persistentvolumeclaim")["demo-model"]["metadata"]["uid"] == claim
    namespace.wait_for_job("second", "Succeeded")
    application.wait_for("Synced", "Healthy")  # with the claim that it no longer names
    assert verify(namespace, job="second").keys() == {("train", 1), ("test", 1)}


def test_a_failed_job_is_degraded_by_its_verifier_alone(application: Application, namespace: Namespace) -> None:
    failing = {"task": "", "workers": 0, "args": ["run", "--", "python", "-c", "raise SystemExit('no')"]}
    assert application.sync(values(**failing))["phase"] == "Succeeded"
    namespace.wait_for_job("demo", "Failed")
    application.wait_for("Synced", "Degraded")
    assert application.sync(values(**failing, verifier={"job": False}))["phase"] == "Succeeded"
    application.wait_for("Synced", "Healthy")  # Argo CD has no health of a PyTorchJob
