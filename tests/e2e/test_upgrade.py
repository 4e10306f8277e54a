"""What `helm upgrade` does to a job under the real operator, which changes no pod of a job that runs."""

import shutil
import subprocess

import pytest
from cluster import CHART, KIND_VALUES, Namespace, args, data_values, image_values, run, verify, wait_for

from torchtally import events

PODS = {"demo-master-0", "demo-worker-0"}
LONG = ["--epochs", "500", "--batch-size", "1000"]


def program_of(name: str, *marks: pytest.MarkDecorator) -> object:
    missing = pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not on PATH")
    return pytest.param(name, marks=(missing, *marks))


def values(*arguments: str) -> list[str]:
    return [*KIND_VALUES, *data_values(), *image_values(), "--set", "workers=1", *args(*arguments)]


def upgrade(namespace: Namespace, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return namespace.helm("upgrade", "demo", str(CHART), *options, check=check)


def test_a_running_job_is_changed_or_it_is_said_why_not(policies: None, namespace: Namespace) -> None:
    namespace.helm("install", "demo", str(CHART), *values(*LONG))
    wait_for("the training to begin", lambda: namespace.reported("demo-master-0", events.Begun))
    before = namespace.uids()

    refused = upgrade(namespace, *values("--epochs", "1"), check=False)
    assert refused.returncode != 0
    assert "PyTorchJob demo exists, and its controller ignores changes to its pods (" in refused.stderr
    job = namespace.list("pytorchjob")["demo"]
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"][2:] == LONG

    upgrade(namespace, *values(*LONG), "--set", "activeDeadlineSeconds=77777")
    assert namespace.list("pytorchjob")["demo"]["spec"]["runPolicy"]["activeDeadlineSeconds"] == 77777
    assert namespace.uids() == before

    # Suspended, it has no pods, and those that it gets afterwards are of the new values.
    upgrade(namespace, *values(*LONG), "--set", "suspend=true")
    wait_for("the pods to be gone", lambda: not namespace.list("pod"))
    changed = [*values("--epochs", "1"), "--set", "model.subPath=other"]
    upgrade(namespace, *changed)
    wait_for("the pods of the new values", lambda: namespace.list("pod").keys() == PODS)
    spec = namespace.list("pytorchjob")["demo"]["spec"]
    refused = namespace.helm("rollback", "demo", "1", check=False)
    assert refused.returncode != 0 and "field is immutable" in refused.stderr
    assert namespace.list("pytorchjob")["demo"]["spec"] == spec
    upgrade(namespace, *changed)
    namespace.wait_for_job("demo", "Succeeded")
    assert verify(namespace).keys() == {("train", 1), ("test", 1)}

    # A finished job cannot restart; a new job that replaces it has the same claim.
    refused = upgrade(namespace, *changed, "--set", "suspend=true", check=False)
    assert "its controller ignores changes to suspend (which is true and was false):" in refused.stderr
    upgrade(namespace, *changed, "--set", "ttlSecondsAfterFinished=86400")
    assert namespace.list("pytorchjob")["demo"]["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == 86400
    refused = upgrade(namespace, *changed, "--set", "workers=2", check=False)
    assert refused.returncode != 0
    assert "PyTorchJob demo exists, and its controller ignores changes to its pods (" in refused.stderr
    upgrade(namespace, *changed, "--set", "workers=2,jobNameRevision=true,model.subPath=third")
    (name,) = namespace.list("pytorchjob")
    assert name.startswith("demo-")
    namespace.wait_for_job(name, "Succeeded")
    shards = verify(namespace, job=name)
    assert [numbers[1:3] for numbers in shards["train", 1].values()] == [[20000, 20000]] * 3


@pytest.mark.parametrize("program", [program_of("helm"), program_of("helm3", pytest.mark.nightly)])
def test_what_is_refused_changes_nothing(policies: None, namespace: Namespace, program: str) -> None:
    """Of a job that is left to another controller, and so has no pods, but for which the policies hold."""
    kept = ("--set=model.enabled=false,verifier.enabled=false,managedBy=kueue.x-k8s.io/multikueue", *KIND_VALUES)

    def upgrade(values: str) -> None:
        namespace.helm("upgrade", "--install", "demo", str(CHART), *kept, f"--set={values}", program=program)

    def refused(*command: str, text: str | None = None) -> None:
        spec = namespace.list("pytorchjob")["demo"]["spec"]
        result = run(*command, "--namespace", namespace.name, check=False, text=text)
        assert result.returncode != 0
        assert "PyTorchJob demo is running, and its pods cannot change" in result.stderr
        assert namespace.list("pytorchjob")["demo"]["spec"] == spec

    upgrade("shmSize=1Gi")
    upgrade("shmSize=1Gi,suspend=true")
    upgrade("shmSize=2Gi")
    refused(program, "rollback", "demo", "1")
    upgrade("shmSize=2Gi,ttlSecondsAfterFinished=9")
    rendered = namespace.helm("template", "demo", str(CHART), *kept, "--set=shmSize=1Gi").stdout
    refused("kubectl", "apply", "--filename=-", "--server-side", "--force-conflicts", text=rendered)
    refused("kubectl", "apply", "--filename=-", text=rendered)


@pytest.mark.parametrize("program", [program_of("helm"), program_of("helm3", pytest.mark.nightly)])
def test_a_scaled_job_keeps_its_number_of_pods(operator: None, namespace: Namespace, program: str) -> None:
    """Suspended, because the number is all that is of interest."""
    kept = ("--set=model.enabled=false,suspend=true,elasticPolicy.maxReplicas=4", *KIND_VALUES)

    def refusal(values: str) -> str:
        options = (*kept, f"--set={values}")
        return namespace.helm("upgrade", "--install", "demo", str(CHART), *options, check=False, program=program).stderr

    def workers() -> int:
        number: int = namespace.list("pytorchjob")["demo"]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
        return number

    assert refusal("workers=2") == ""
    namespace.kubectl("scale", "pytorchjob", "demo", "--replicas=3")
    assert refusal("workers=2,backoffLimit=9") == ""
    assert workers() == 3
    assert "run kubectl scale pytorchjob demo --replicas=4 first" in refusal("workers=4")
    namespace.kubectl("scale", "pytorchjob", "demo", "--replicas=4")
    assert refusal("workers=4") == ""
    assert "workers is 2, but PyTorchJob demo was scaled to 4 workers" in refusal("workers=2")
    assert workers() == 4


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
    namespace.uninstall(*before, "persistentvolumeclaim/demo-model")
