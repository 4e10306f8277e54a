"""The chart and the image under the real training operator."""

import json
import sys
from pathlib import Path

import pytest
from cluster import KIND_VALUES, ROOT, Namespace, data_values, run, stays, wait_for

PODS = ["demo-master-0", "demo-worker-0", "demo-worker-1", "demo-worker-2"]


def verify(namespace: Namespace, *options: str) -> dict[tuple[str, int], dict[str, list[int]]]:
    """What scripts/verify_shards.py finds for the job `demo`, which has to be proven: for each phase and epoch, each
    pod's rank and its samples expected, consumed, lost and doubled."""
    script = str(ROOT / "scripts/verify_shards.py")
    found = json.loads(run(sys.executable, script, "--json", "--job", "demo", "-n", namespace.name, *options).stdout)
    assert found["holds"]
    shards: dict[tuple[str, int], dict[str, list[int]]] = {}
    for tally in found["tallies"]:
        if tally["rank"] != "all":
            numbers = [tally[name] for name in ("rank", "expected", "consumed", "lost", "doubled")]
            shards.setdefault((tally["phase"], tally["epoch"]), {})[tally["pod"]] = numbers
    return shards


def test_a_missing_operator_is_named(own_cluster: None, namespace: Namespace) -> None:
    if "pytorchjobs" in run("kubectl", "get", "crd", "--output=name").stdout:
        pytest.skip("the kept cluster has the operator already")
    result = namespace.install(*KIND_VALUES, check=False)
    assert result.returncode != 0
    assert "install the Kubeflow training operator first" in result.stderr
    assert namespace.helm("list", "--short").stdout == ""


def test_quick_start(operator: None, namespace: Namespace, tmp_path: Path) -> None:
    before = namespace.everything()
    notes = namespace.install(*KIND_VALUES, *data_values()).stdout
    assert f"helm -n {namespace.name} test demo" in notes
    namespace.wait_for_job("demo", "Succeeded")

    shards = verify(namespace, "--expect-per-pod", "15000")
    exact = {pod: [rank, 15000, 15000, 0, 0] for rank, pod in enumerate(PODS)}
    assert shards["train", 1] == shards["train", 2] == exact

    assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout

    fetch = "\n".join(line for line in notes.partition("fetch them:")[2].splitlines() if line.startswith("  kubectl"))
    run("bash", "-euc", f"cd {tmp_path}\n{fetch}")
    assert {file.name for file in (tmp_path / "output").iterdir()} == {"checkpoints", "model.pt", "proof.json"}

    namespace.helm("uninstall", "demo", "--wait")
    kept = before | {"persistentvolumeclaim/demo-model"}
    wait_for("nothing but the claim to be left", 120, lambda: namespace.everything() == kept)


@pytest.mark.parametrize("workers", [0, 1, 6])
def test_any_number_of_workers_proves_its_shards(operator: None, namespace: Namespace, workers: int) -> None:
    options = ["--set", f"workers={workers}", "--set-json", 'args=["--epochs", "1"]']
    namespace.install(*KIND_VALUES, *data_values(), *options)
    namespace.wait_for_job("demo", "Succeeded", limit=420)
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
    [("None", {*PODS[:3]}), ("Running", {PODS[0]}), ("All", set())],
)
def test_clean_pod_policy(operator: None, namespace: Namespace, policy: str, left: set[str]) -> None:
    options = ["--set", f"task=,workers=2,cleanPodPolicy={policy}"]
    options += ["--set-json", f"args=[],command={json.dumps(['python', '-c', MEET])}"]
    namespace.install(*KIND_VALUES, *options)
    namespace.wait_for_job("demo", "Succeeded")
    wait_for(f"{left or 'no pods'} to be left", 120, lambda: namespace.list("pod").keys() == left)
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
        120,
        lambda: set(run("kubectl", "get", "nodes", allocatable).stdout.split()) == {"4"},
    )


def test_default_values_are_scheduled_on_gpus_and_say_that_none_can_be_used(
    operator: None, nodes_with_gpus: None, namespace: Namespace
) -> None:
    # 4 CPUs and 32Gi a pod are more than a test machine has; all else, GPUs included, is as the chart has it.
    smaller = {"cpu": 1, "memory": "1Gi", "requests": {"cpu": "100m", "memory": "256Mi"}}
    namespace.install("--set-json", f"resources={json.dumps(smaller)}", "--set", "shmSize=64Mi")
    pods = wait_for("four pods", 60, lambda: len(found := namespace.list("pod")) == 4 and found)
    # A worker's init container waits for the master's name, which lasts no longer than the master runs: some seconds,
    # while the cluster's DNS remembers for 30 that it was not there.
    wait_for("the master's service", 60, lambda: "demo-master-0" in namespace.list("service"))
    known = {"spec": {"publishNotReadyAddresses": True}}
    run("kubectl", "--namespace", namespace.name, "patch", "service", "demo-master-0", "--patch", json.dumps(known))
    for pod in pods.values():
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "TORCHTALLY_DEVICE", "value": "cuda"} in container["env"]

    said = set()

    def all_have_said_so() -> bool:
        sentence = "a GPU was asked for and cannot be used"
        said.update(pod for pod in PODS if sentence in namespace.log(pod))  # a restarted pod's log is empty at first
        return said == set(PODS)

    wait_for("all pods to say that no GPU can be used", 300, all_have_said_so)
