"""What happens to the nodes of a cluster of our own, which are containers, and what the tests keep on them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import controllers
from cluster import Namespace, run, wait_for

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
SHARED = "/e2e/shared"  # one folder of this machine in all nodes (tools/e2e.sh)
PIPE = "train-images-idx3-ubyte.gz"
_SMALL = 24  # MiB: some checkpoints
_KEPT = ["--set", "model.existingClaim=kept"]
# The scheduler may put all pods on one node, which has the image, and then no node has workers alone.
_EVENLY = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",  # a node that is drained or stopped takes no pods, and does not count
}


def workers() -> list[str]:
    """The nodes that take pods."""
    return (
        run("kubectl", "get", "nodes", f"--selector=!{CONTROL_PLANE}", "--output=name")
        .stdout.replace("node/", "")
        .split()
    )


def control_plane() -> str:
    """The node that takes none."""
    named = run("kubectl", "get", "nodes", f"--selector={CONTROL_PLANE}", "--output=name").stdout.split()
    return named[0].removeprefix("node/")


def on(node: str, script: str) -> None:
    run("docker", "exec", node, "sh", "-euc", script)


def of(namespace: Namespace, pod: str) -> str:
    return str(namespace.list("pod")[pod]["spec"]["nodeName"])


def without_the_master(namespace: Namespace) -> str:
    """A node that has workers of the job alone."""
    placed: dict[str, str] = {name: pod["spec"]["nodeName"] for name, pod in namespace.list("pod").items()}
    master = placed.pop("demo-master-0")
    others = set(placed.values()) - {master}
    return min(others)


def stop(node: str) -> None:
    run("docker", "stop", node)


def wait_until_missed(node: str) -> None:
    """By the cluster."""
    run("kubectl", "wait", f"node/{node}", "--for=condition=Ready=Unknown", "--timeout=180s")


def start(node: str) -> None:
    run("docker", "start", node)
    run("kubectl", "wait", f"node/{node}", "--for=condition=Ready", "--timeout=180s")


def give_up(node: str) -> None:
    """Say that it stays away: pods that it had are made anew elsewhere."""
    run("kubectl", "taint", "nodes", node, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")


def drain(node: str, wait: bool = True) -> None:
    """Ask its pods to go, and wait until they have."""
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={180 if wait else 1}s"]
    run("kubectl", "drain", node, *options, check=wait)


def keep_the_operator_apart() -> None:
    """To the control plane: what befalls the other nodes must not befall the operator."""
    place = {
        "nodeSelector": {CONTROL_PLANE: ""},
        "tolerations": [{"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
    }
    patch = json.dumps({"spec": {"template": {"spec": place}}})
    run("kubectl", "--namespace=kubeflow", "patch", "deployment", "training-operator", "--patch", patch)
    controllers.wait_for_operator()


# What a job is given beside its usual options, and what is cleared away afterwards.


@contextmanager
def nothing(namespace: Namespace) -> Iterator[list[str]]:
    yield []


@contextmanager
def restored(namespace: Namespace) -> Iterator[list[str]]:
    """The pods are on all nodes, which are as they were in the end."""
    try:
        yield ["--set-json", f"topologySpreadConstraints={json.dumps([_EVENLY])}"]
    finally:
        for node in workers():
            run("docker", "start", node)
            run("kubectl", "uncordon", node)
            run("kubectl", "taint", "nodes", node, f"{OUT_OF_SERVICE}-", check=False)
        for node in workers():
            run("kubectl", "wait", f"node/{node}", "--for=condition=Ready", "--timeout=180s")


@contextmanager
def slow_data(namespace: Namespace) -> Iterator[list[str]]:
    """Data that does not come before `let_data_through`: its first file is a pipe into which nobody writes."""
    folder = _data(namespace)
    given = f"{os.environ['E2E_DATA']}/fashion-mnist"
    for node in workers():
        on(node, f"cp -r {given} {folder} && mv {folder}/{PIPE} {folder}/late && mkfifo {folder}/{PIPE}")
    try:
        yield ["--set", f"data.hostPath.path={folder}"]
    finally:
        for node in workers():
            on(node, f"rm -rf {folder}")


def let_data_through(namespace: Namespace) -> None:
    """To whoever asks from now on."""
    for node in workers():
        on(node, f"mv {_data(namespace)}/late {_data(namespace)}/{PIPE}")


def _data(namespace: Namespace) -> str:
    return f"/e2e/data-{namespace.name}"


@contextmanager
def small_volume(namespace: Namespace) -> Iterator[list[str]]:
    """A volume that can be filled: in the memory of one node."""
    node, path = workers()[0], f"/e2e/small-{namespace.name}"
    on(node, f"mkdir -p {path} && mount -t tmpfs -o size={_SMALL}m,mode=1777 tmpfs {path}")
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    here = {"local": {"path": path}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    try:
        with _volume(namespace, "kept", "ReadWriteOnce", here):
            yield _KEPT
    finally:
        on(node, f"umount --lazy {path} && rmdir {path}")


@contextmanager
def shared_volume(namespace: Namespace) -> Iterator[list[str]]:
    """A volume that all nodes have, as a network's would be; and the nodes are as they were in the end."""
    node, path = workers()[0], f"{SHARED}/{namespace.name}"
    on(node, f"mkdir -p {path} && chmod 777 {path}")  # no fsGroup for a host's path
    with restored(namespace), _volume(namespace, "kept", "ReadWriteMany", {"hostPath": {"path": path}}):
        yield _KEPT
    on(node, f"rm -rf {path}")


@contextmanager
def claimed_data(namespace: Namespace) -> Iterator[list[str]]:
    """The data by a claim, for pods that may mount no path of a node."""
    if not (folder := os.environ.get("E2E_DATA")):
        yield []  # they fetch it
        return
    source: dict[str, object] = {"hostPath": {"path": f"{folder}/fashion-mnist"}}
    with _volume(namespace, "data", "ReadOnlyMany", source):
        yield ["--set", "data.persistentVolumeClaim.claimName=data"]


@contextmanager
def _volume(namespace: Namespace, claim: str, mode: str, source: dict[str, object]) -> Iterator[None]:
    name = f"{namespace.name}-{claim}"
    both = {"accessModes": [mode], "storageClassName": ""}
    volume = both | {"capacity": {"storage": "64Mi"}, "persistentVolumeReclaimPolicy": "Retain"} | source
    volume["claimRef"] = {"namespace": namespace.name, "name": claim}
    asked = both | {"resources": {"requests": {"storage": "64Mi"}}, "volumeName": name}
    namespace.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    namespace.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": asked})
    try:
        yield
    finally:
        run("kubectl", "delete", "persistentvolume", name, "--wait=false")


def wait_for_no_pods_on(node: str, namespace: Namespace) -> None:
    wait_for(
        f"all pods to be on other nodes than {node}",
        lambda: (
            len(found := namespace.list("pod")) == 4
            and all(pod["spec"].get("nodeName") not in (None, node) for pod in found.values())
        ),
    )
