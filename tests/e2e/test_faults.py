"""What befalls pods under the real operator: the job ends with the weights of an undisturbed one, and proves them."""

import re
import sys
from collections.abc import Callable

import pytest
from cluster import CONTAINER, KIND_VALUES, ROOT, Namespace, data_values, run, wait_for

TRAINING = ["--set-json", 'args=["--epochs", "4", "--batch-size", "250"]']
# The image has no pkill.
KILL = """
import os, pathlib, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"torchtally.worker" in pathlib.Path("/proc", pid, "cmdline").read_bytes().split(b"\\0"):
        os.kill(int(pid), signal.SIGKILL)
"""


def train(namespace: Namespace, *options: str) -> None:
    namespace.install(*KIND_VALUES, *data_values(), *TRAINING, *options)


def weights(namespace: Namespace) -> str:
    """The hash that the master's log names, once the job has succeeded and its shards are proved."""
    namespace.wait_for_job("demo", "Succeeded", limit=420)
    run(sys.executable, str(ROOT / "scripts/verify_shards.py"), "--job", "demo", "-n", namespace.name)
    (found,) = re.findall(r"model\.pt \((sha256:[0-9a-f]{64})\)", namespace.log("demo-master-0"))
    return found


@pytest.fixture(scope="module")
def undisturbed(operator: None, namespaces: None) -> str:
    namespace = Namespace("torchtally-undisturbed")
    namespace.create()
    try:
        train(namespace)
        return weights(namespace)
    finally:
        namespace.delete()


def kill_the_master_s_trainer(namespace: Namespace) -> None:
    namespace.kubectl("exec", "demo-master-0", f"--container={CONTAINER}", "--", "python", "-c", KILL)


def delete_a_worker(namespace: Namespace) -> None:
    namespace.kubectl("delete", "pod", "demo-worker-1", "--wait=false")


@pytest.mark.parametrize(
    ("policy", "disturb"), [("OnFailure", kill_the_master_s_trainer), ("ExitCode", delete_a_worker)]
)
def test_ends_with_the_weights_of_an_undisturbed_job(
    undisturbed: str, namespace: Namespace, policy: str, disturb: Callable[[Namespace], None]
) -> None:
    train(namespace, "--set", f"restartPolicy={policy}")
    wait_for("the first epoch", 300, lambda: "epoch 1/4: loss" in namespace.log("demo-master-0"))
    before = {name: pod["metadata"]["uid"] for name, pod in namespace.list("pod").items()}
    disturb(namespace)

    def all_started_again() -> bool:
        pods = namespace.list("pod")
        return pods.keys() == before.keys() and all(
            pod["metadata"]["uid"] != before[name]
            or any(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
            for name, pod in pods.items()
        )

    wait_for("all pods to have started again", 180, all_started_again)
    assert weights(namespace) == undisturbed
