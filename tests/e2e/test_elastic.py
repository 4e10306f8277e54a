"""An elastic job: pods that come while it trains take their part, and the proof holds over all numbers of ranks."""

import json

import nodes
import pytest
from cluster import KIND_VALUES, Namespace, args, data_values, run, verify, wait_for
from faults import act

from torchtally import events

POLICY = {"minReplicas": 2, "maxReplicas": 3, "maxRestarts": 10}
TRAINING = args("--epochs", "4", "--batch-size", "100", "--save-seconds", "1")


def trains(namespace: Namespace, kind: type[events.Begun | events.Resumed], world: int) -> bool:
    """Whether so many ranks have begun, or resumed; any pod may have rank 0."""
    reported = [event for pod in namespace.list("pod") for event in namespace.reported(pod, kind)]
    return any(event.world == world for event in reported)


@pytest.mark.nightly
def test_a_pod_that_comes_later_takes_its_part(operator: None, own_cluster: None, namespace: Namespace) -> None:
    with nodes.shared_volume(namespace) as volume:
        elastic = ["--set", "workers=2", "--set-json", f"elasticPolicy={json.dumps(POLICY)}"]
        namespace.install(*KIND_VALUES, *data_values(), *elastic, *TRAINING, *volume)
        wait_for("two pods to train", lambda: trains(namespace, events.Begun, 2))
        act(namespace, "demo-worker-0", "stop", "ranks", "mid-epoch:1")
        run("kubectl", "-n", namespace.name, "scale", "pytorchjob", "demo", "--replicas=3")
        wait_for("the third to come", lambda: namespace.reported("demo-worker-2", events.Started))
        act(namespace, "demo-worker-0", "go", "ranks")
        wait_for("three to go on", lambda: trains(namespace, events.Resumed, 3))
        namespace.wait_for_job("demo", "Succeeded")
        assert namespace.starts() == 3  # all met again without a container's restart
        shards = verify(namespace)
    assert {phase for phase, _ in shards} == {"train", "test"}
    assert shards["train", 4].keys() == {"demo-worker-0", "demo-worker-1", "demo-worker-2"}
    assert [numbers[1:] for numbers in shards["train", 4].values()] == [[20000, 20000, 0, 0]] * 3
