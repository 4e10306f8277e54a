"""A pod whose CPUs its node throttles is named, by the job's events and by torchtally_jobs."""

import json

import nodes
import pytest
from cluster import KIND_VALUES, ROOT, Namespace, own_program, script, wait_for
from faults import PODS

from torchtally import events

SLOW = "demo-worker-1"
SLOWED = ROOT / "tests/helpers/slowed.py"
SCRIPT = ["--set-file", rf"files.slowed\.py={SLOWED}", *own_program("python", "/files/slowed.py")]
# All pods have the same CPUs, whatever the node has.
OPTIONS = ["--set", "resources.cpu=300m", "--set-json", 'env=[{"name": "TORCHTALLY_PROGRESS_SECONDS", "value": "1"}]']


@pytest.mark.nightly
def test_a_pod_whose_cpus_are_throttled(own_cluster: None, operator: None, namespace: Namespace) -> None:
    namespace.install(*KIND_VALUES, *SCRIPT, *OPTIONS)
    for pod in PODS:
        wait_for(f"{pod} to run", lambda pod=pod: namespace.reported(pod, events.Started))
        namespace.kubectl("exec", pod, "--", "touch", "/tmp/go")
    wait_for("progress", lambda: namespace.reported(PODS[0], events.Progress))
    _throttle(namespace, SLOW)

    def named() -> bool:
        found = namespace.reported(PODS[0], events.Straggler)
        return bool(found) and (found[-1].slow, found[-1].loses_in) == (SLOW, "compute")

    wait_for(f"{SLOW} to be named", named)
    told = script("torchtally_jobs.py", "status", "demo", "--json", "-n", namespace.name, check=False)
    status = json.loads(told.stdout)
    assert (status["straggler"]["slow"], status["straggler"]["loses_in"]) == (SLOW, "compute")


def _throttle(namespace: Namespace, pod: str) -> None:
    """To 2% of a CPU."""
    (container,) = namespace.list("pod")[pod]["status"]["containerStatuses"]
    identifier = container["containerID"].removeprefix("containerd://")
    nodes.on(nodes.of(namespace, pod), f"crictl update --cpu-period 100000 --cpu-quota 2000 {identifier}")
