"""The chart and the image under the real training operator."""

import json
from pathlib import Path

import clean_log
import nodes
import pytest
import yaml
from cluster import (
    CHART,
    KIND_VALUES,
    Namespace,
    args,
    data_values,
    image_values,
    run,
    script,
    stays,
    verify,
    wait_for,
)
from faults import PODS


def test_a_missing_operator_is_named(own_cluster: None, namespace: Namespace) -> None:
    if "pytorchjobs" in run("kubectl", "get", "crd", "--output=name").stdout:
        pytest.skip("the kept cluster has the operator already")
    result = namespace.install(*KIND_VALUES, check=False)
    assert result.returncode != 0
    assert "to install the Kubeflow training operator, run kubectl apply" in result.stderr
    assert namespace.helm("list", "--short").stdout == ""


SCENARIOS = [path for path in sorted((CHART / "ci").iterdir()) if path.stem != "trainjob-values"]


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_is_what_the_api_server_accepts(operator: None, namespace: Namespace, values: Path) -> None:
    namespace.restrict()
    options = [f"--values={values}", *image_values(), "--skip-tests"]
    rendered = namespace.helm("template", "demo", str(CHART), *options).stdout
    accepted = namespace.kubectl("apply", "--dry-run=server", "--filename=-", text=rendered)
    assert "pytorchjob.kubeflow.org/demo created (server dry run)" in accepted

    # The operator makes the pods, and would be refused then: they have to keep to the restricted standard.
    (job,) = (each for each in yaml.safe_load_all(rendered) if each and each["kind"] == "PyTorchJob")
    namespace.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "demo"}})
    for kind, replica in job["spec"]["pytorchReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", **replica["template"]}
        pod["metadata"] |= {"name": f"demo-{kind.lower()}"}
        for name in ("priorityClassName", "runtimeClassName"):  # classes that this cluster does not have
            pod["spec"].pop(name, None)
        namespace.kubectl("apply", "--dry-run=server", "--filename=-", text=json.dumps(pod))


def test_quick_start(operator: None, namespace: Namespace, tmp_path: Path) -> None:
    before = namespace.everything()
    notes = namespace.install(*KIND_VALUES, *data_values()).stdout
    assert f"helm -n {namespace.name} test demo" in notes
    namespace.wait_for_job("demo", "Succeeded")

    shards = verify(namespace, "--expect-per-pod", "15000")
    exact = {pod: [rank, 15000, 15000, 0, 0] for rank, pod in enumerate(PODS)}
    assert shards["train", 1] == shards["train", 2] == exact
    for pod in PODS:
        clean_log.assert_clean(namespace.log(pod))

    status = script("torchtally_jobs.py", "status", "demo", "-n", namespace.name, "--json")
    start = json.loads(status.stdout)["start"]
    assert start["pods"].keys() == set(PODS)
    assert list(start["phases"]) == ["scheduling", "container", "import", "rendezvous", "data", "first step"]

    assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout

    (fetch,) = [line.split() for line in notes.splitlines() if line.startswith("  torchtally jobs fetch")]
    _, _, *arguments = [str(tmp_path / "output") if part == "./output" else part for part in fetch]
    script("torchtally_jobs.py", *arguments)
    assert {file.name for file in (tmp_path / "output").iterdir()} == {"model.pt", "proof.json", "run.json"}

    namespace.uninstall(*before, "persistentvolumeclaim/demo-model")


# What OpenShift makes of the values for it: a user and a group for files of the namespace's own, and group 0.
OPENSHIFT = [f"--values={CHART / 'ci/openshift-values.yaml'}", "--set=podSecurityContext.runAsUser=1000680000"]
OPENSHIFT += ["--set=podSecurityContext.fsGroup=1000680000"]


def test_a_master_alone_under_the_restricted_standard(operator: None, namespace: Namespace) -> None:
    namespace.restrict()
    with nodes.claimed_data(namespace) as data:
        check_shards(
            namespace, 0, f"--values={CHART / 'ci/single-values.yaml'}", "--set=resources.requests.cpu=100m", *data
        )


@pytest.mark.nightly
def test_workers_under_the_restricted_standard(restricted_operator: None, namespace: Namespace) -> None:
    namespace.restrict()
    with nodes.claimed_data(namespace) as data:
        check_shards(namespace, 1, *OPENSHIFT, *data)


@pytest.mark.nightly
def test_six_workers_prove_their_shards(operator: None, namespace: Namespace) -> None:
    check_shards(namespace, 6, *KIND_VALUES, *data_values())


def check_shards(namespace: Namespace, workers: int, *values: str) -> None:
    namespace.install(*values, "--set", f"workers={workers}", *args("--epochs", "1"))
    namespace.wait_for_job("demo", "Succeeded")
    pods = ["demo-master-0", *(f"demo-worker-{index}" for index in range(workers))]
    sizes = {pod: len(range(rank, 60000, len(pods))) for rank, pod in enumerate(pods)}
    exact = {pod: [rank, sizes[pod], sizes[pod], 0, 0] for rank, pod in enumerate(pods)}
    assert verify(namespace)["train", 1] == exact


# The master waits until all workers run, and ends; the workers stay.
MEET = """
import os, signal, socket, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.create_server(("", address[1]))
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        server.accept()
else:
    while True:
        try:
            socket.create_connection(address, timeout=5)
            break
        except OSError:
            time.sleep(0.2)
    print("met", flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("None", {*PODS[:3]}),
        pytest.param("Running", {PODS[0]}, marks=pytest.mark.nightly),
        pytest.param("All", set(), marks=pytest.mark.nightly),
    ],
)
def test_clean_pod_policy(operator: None, namespace: Namespace, policy: str, left: set[str]) -> None:
    options = ["--set", f"task=,workers=2,cleanPodPolicy={policy}"]
    options += ["--set-json", f"args=[],command={json.dumps(['python', '-c', MEET])}"]
    namespace.install(*KIND_VALUES, *options)
    namespace.wait_for_job("demo", "Succeeded")
    wait_for(f"{left or 'no pods'} to be left", lambda: namespace.list("pod").keys() == left)
    # The operator deletes within a second or two of the job's end: what is left now stays.
    stays(f"{left or 'no pods'} left", 10, lambda: namespace.list("pod").keys() == left)
    assert all(pod["status"]["phase"] == "Running" for name, pod in namespace.list("pod").items() if "worker" in name)


@pytest.fixture
def nodes_with_gpus(own_cluster: None) -> None:
    """Gives the nodes GPUs by hand, as for any resource that no device plugin serves."""
    for node in run("kubectl", "get", "nodes", "--output=name").stdout.split():
        gpus = {"status": {"capacity": {"nvidia.com/gpu": "4"}}}
        run("kubectl", "patch", node, "--subresource=status", "--patch", json.dumps(gpus))
    allocatable = r"--output=jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
    wait_for(
        "the GPUs to be allocatable",
        lambda: set(run("kubectl", "get", "nodes", allocatable).stdout.split()) == {"4"},
    )


@pytest.mark.nightly
def test_default_values_are_scheduled_on_gpus_and_say_that_none_can_be_used(
    operator: None, nodes_with_gpus: None, namespace: Namespace
) -> None:
    # 4 CPUs and 32Gi a pod are more than a test machine has; all else, GPUs included, is as the chart has it.
    smaller = {"cpu": 1, "memory": "1Gi", "requests": {"cpu": "100m", "memory": "256Mi"}}
    namespace.install("--set-json", f"resources={json.dumps(smaller)}", "--set", "shmSize=64Mi")
    pods = wait_for("four pods", lambda: len(found := namespace.list("pod")) == 4 and found)
    # A worker's init container waits for the master's name, which lasts no longer than the master runs: some seconds,
    # while the cluster's DNS remembers for 30 that it was not there.
    wait_for("the master's service", lambda: "demo-master-0" in namespace.list("service"))
    known = {"spec": {"publishNotReadyAddresses": True}}
    run("kubectl", "--namespace", namespace.name, "patch", "service", "demo-master-0", "--patch", json.dumps(known))
    for pod in pods.values():
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "TORCHTALLY_DEVICE", "value": "cuda"} in container["env"]

    said = set()

    def all_have_said_so() -> bool:
        sentence = "a GPU is requested and cannot be used"
        said.update(pod for pod in PODS if sentence in namespace.log(pod))  # a restarted pod's log is empty at first
        return said == set(PODS)

    wait_for("all pods to say that no GPU can be used", all_have_said_so)
