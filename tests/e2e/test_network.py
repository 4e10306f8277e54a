"""Where the pods of a job listen, and a stranger's pod, which the NetworkPolicy keeps from them."""

import pytest
from cluster import KIND_VALUES, Namespace, args, bystander, data_values, wait_for
from faults import MASTER
from network import STRANGER, address, enforces, reaches

STORE, METRICS = 23456, 9090


def test_a_stranger_is_kept_from_the_pods_and_prometheus_from_all_but_the_metrics(
    operator: None, namespace: Namespace
) -> None:
    namespace.apply(bystander("prometheus", ["sleep", "3600"], {"app.kubernetes.io/name": "prometheus"}))
    endless = args("--epochs", "100000", "--batch-size", "1000")
    namespace.install(*KIND_VALUES, *data_values(), "--set", "workers=1,metrics.enabled=true", *endless)
    wait_for("the metrics", lambda: reaches(namespace, MASTER, "127.0.0.1", METRICS))
    master = address(namespace, MASTER)
    assert reaches(namespace, MASTER, master, METRICS)
    assert reaches(namespace, "demo-worker-0", master, STORE)
    assert not reaches(namespace, MASTER, "127.0.0.1", STORE)

    if not enforces(namespace):
        pytest.skip("the network of this cluster enforces no NetworkPolicy")
    assert reaches(namespace, "prometheus", master, METRICS)
    assert reaches(namespace, "prometheus", address(namespace, "demo-worker-0"), METRICS)
    assert not reaches(namespace, "prometheus", master, STORE)
    assert not reaches(namespace, STRANGER, master, METRICS)
    assert not reaches(namespace, STRANGER, master, STORE)
