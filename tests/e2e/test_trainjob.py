"""The same values, image, entry point and proof as a TrainJob, under the real Kubeflow Trainer and JobSet."""

import json

import nodes
import pytest
from cluster import CHART, Namespace, args, data_values, run, verify, wait_for
from faults import MID_EPOCH, act

from torchtally import events

KIND, CONTAINER = "trainjob", "node"
VALUES = ["--values", str(CHART / "ci/trainjob-values.yaml")]
OPTIONS = [*VALUES, *data_values()]


def pod_of(namespace: Namespace, node: int) -> str:
    """The pod of a node, once it runs."""

    def running() -> str | None:
        for name, pod in namespace.list("pod").items():
            if name.startswith(f"demo-node-0-{node}-") and pod["status"]["phase"] == "Running":
                return name
        return None

    return wait_for(f"node {node} to run", running)


def test_quick_start_under_the_restricted_standard(trainer: None, policies: None, namespace: Namespace) -> None:
    namespace.restrict()
    with nodes.claimed_data(namespace) as data:
        train(namespace, data)


def train(namespace: Namespace, data: list[str]) -> None:
    before = namespace.everything()
    notes = namespace.install(*VALUES, *data).stdout
    assert "TrainJob demo trains on 4 pods" in notes

    # Trainer would give a changed runtime to the pods that it makes when the job resumes.
    spec = namespace.list("trainingruntime")["demo"]["spec"]
    other = namespace.helm("template", "--skip-tests", "demo", str(CHART), *VALUES, *data, "--set=shmSize=1Gi").stdout
    command = ("kubectl", "--namespace", namespace.name, "apply", "--filename=-", "--server-side", "--force-conflicts")
    refused = run(*command, check=False, text=other)
    assert "TrainingRuntime demo belongs to a TrainJob, whose pods cannot change" in refused.stderr
    assert namespace.list("trainingruntime")["demo"]["spec"] == spec

    namespace.wait_for_job("demo", "Complete", kind=KIND)
    shards = verify(namespace, "--expect-per-pod", "15000")
    assert sorted(shards["train", 1].values()) == [[rank, 15000, 15000, 0, 0] for rank in range(4)]

    assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout
    refused = namespace.helm("upgrade", "demo", str(CHART), "--reuse-values", "--set=workers=1", check=False)
    assert "TrainJob demo exists, and its controller ignores changes to its pods (" in refused.stderr
    namespace.uninstall(*before)


@pytest.mark.nightly
def test_what_helm_does_while_it_runs(trainer: None, namespace: Namespace) -> None:
    before = namespace.everything()
    long = args("--epochs", "500", "--batch-size", "1000", "--save-seconds", "0.2")
    namespace.install(*OPTIONS, "--set=workers=0,model.enabled=true,model.size=64Mi", *long)
    pod = pod_of(namespace, 0)
    wait_for("an epoch to end", lambda: namespace.reported(pod, events.Epoch, CONTAINER))

    def suspend(*how: str) -> None:
        namespace.helm(*how)
        wait_for("the pods to be gone", lambda: not namespace.list("pod"))

    suspend("upgrade", "demo", str(CHART), "--reuse-values", "--set=suspend=true")
    namespace.helm("upgrade", "demo", str(CHART), "--reuse-values", "--set=suspend=false")
    pod = pod_of(namespace, 0)
    wait_for("the training to go on", lambda: namespace.reported(pod, events.Resumed, CONTAINER))
    suspend("rollback", "demo", "2")
    namespace.helm("rollback", "demo", "1")
    pod_of(namespace, 0)
    namespace.uninstall(*before, "persistentvolumeclaim/demo-model")


def test_a_killed_rank_goes_on(trainer: None, namespace: Namespace) -> None:
    training = args("--epochs", "3", "--batch-size", "125", "--save-seconds", "0.2")
    namespace.install(*OPTIONS, "--set=workers=1", *training)
    first, second = pod_of(namespace, 0), pod_of(namespace, 1)
    act(namespace, first, "stop", "ranks", MID_EPOCH)
    act(namespace, second, "kill", "ranks", "any")
    act(namespace, first, "go", "ranks")
    namespace.wait_for_job("demo", "Complete", kind=KIND)
    assert sorted(verify(namespace)["train", 3].values()) == [[rank, 30000, 30000, 0, 0] for rank in (0, 1)]
    assert namespace.starts(CONTAINER) > 2
    assert namespace.reported(first, events.Resumed, CONTAINER)


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "again"), [(137, True), (3, False)])
def test_the_exit_code_decides_about_a_restart(trainer: None, namespace: Namespace, code: int, again: bool) -> None:
    script = f"import os, time; os.environ['HOSTNAME'].endswith('-1') and os._exit({code}); time.sleep(3600)"
    options = ["--set=task=,restartPolicy=ExitCode,workers=1,terminationGracePeriodSeconds=15", "--set-json"]
    namespace.install(*OPTIONS, *options, f"args=[],command={json.dumps(['python', '-c', script])}")

    def made() -> int:
        return sum(name.startswith("demo-node-0-1-") for name in namespace.list("pod"))

    if again:
        wait_for("another pod in place of the one that ended", lambda: made() > 1)
        assert "Failed" not in namespace.conditions("demo", KIND)
    else:
        namespace.wait_for_job("demo", "Failed", kind=KIND)
        assert made() == 1


@pytest.mark.nightly
def test_a_runtime_of_the_cluster(trainer: None, namespace: Namespace) -> None:
    namespace.install(*OPTIONS, "--set", "workers=1,runtime.name=torch-distributed", *args("--epochs", "1"))
    namespace.wait_for_job("demo", "Complete", kind=KIND)
    for pod in namespace.list("pod").values():  # what the values say has reached them
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] and pod["spec"]["serviceAccountName"] == "demo"
        assert {"mountPath": "/dev/shm", "name": "shm"} in container["volumeMounts"]
    assert sorted(verify(namespace)["train", 1].values()) == [[rank, 30000, 30000, 0, 0] for rank in range(2)]
