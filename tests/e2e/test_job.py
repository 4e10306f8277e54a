"""The chart and the image under the real training operator."""

import json
import sys

import pytest
from cluster import KIND_VALUES, ROOT, Namespace, data_values, run, stays, wait_for

PODS = ["demo-master-0", "demo-worker-0", "demo-worker-1", "demo-worker-2"]


def verify(namespace: Namespace, *options: str) -> str:
    """The table of scripts/verify_shards.py for the job `demo`, which has to be proven."""
    script = str(ROOT / "scripts/verify_shards.py")
    return run(sys.executable, script, "--job", "demo", "-n", namespace.name, *options).stdout


def test_a_missing_operator_is_named(own_cluster: None, namespace: Namespace) -> None:
    crds = run("kubectl", "get", "crd", "--output=name").stdout
    assert "pytorchjobs" not in crds, "the cluster has the operator already"
    result = namespace.install(*KIND_VALUES, check=False)
    assert result.returncode != 0
    assert "install the Kubeflow training operator first" in result.stderr
    assert namespace.helm("list", "--short").stdout == ""


def test_quick_start(operator: None, namespace: Namespace) -> None:
    before = namespace.everything()
    notes = namespace.install(*KIND_VALUES, *data_values()).stdout
    assert f"helm -n {namespace.name} test demo" in notes
    namespace.wait_for_job("demo", "Succeeded")

    rows = [line.split() for line in verify(namespace, "--expect-per-pod", "15000").splitlines()]
    for epoch in ("1", "2"):
        shards = {row[2]: row[3:8] for row in rows if row[:2] == ["train", epoch] and row[2] != "all"}
        assert shards == {pod: [str(rank), "15000", "15000", "0", "0"] for rank, pod in enumerate(PODS)}

    assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout

    master = namespace.list("pod")["demo-master-0"]
    claims = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in master["spec"]["volumes"]]
    assert "demo-model" in claims

    namespace.helm("uninstall", "demo", "--wait")
    kept = before | {"persistentvolumeclaim/demo-model"}
    wait_for("nothing but the claim to be left", 120, lambda: namespace.everything() == kept)


@pytest.mark.parametrize("workers", [0, 1, 6])
def test_any_number_of_workers_proves_its_shards(operator: None, namespace: Namespace, workers: int) -> None:
    options = ["--set", f"workers={workers}", "--set-json", 'args=["--epochs", "1"]']
    namespace.install(*KIND_VALUES, *data_values(), *options)
    namespace.wait_for_job("demo", "Succeeded", limit=420)
    rows = [line.split() for line in verify(namespace).splitlines()]
    consumed = [int(row[5]) for row in rows if row[0] == "train" and row[2] != "all"]
    world = workers + 1
    assert sorted(consumed) == sorted(len(range(rank, 60000, world)) for rank in range(world))


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
    for pod in pods.values():
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "TORCHTALLY_DEVICE", "value": "cuda"} in container["env"]

    def silent() -> list[str]:
        return [pod for pod in PODS if "a GPU was asked for and cannot be used" not in namespace.log(pod)]

    wait_for("all pods to say that no GPU can be used", 300, lambda: not silent())
