"""A real Prometheus that scrapes a job has the job's own numbers."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus
import pytest
import yaml
from cluster import CHART, KIND_VALUES, Namespace, args, data_values, wait_for
from faults import MASTER, act
from network import enforces
from prometheus_client.parser import text_string_to_metric_families

from torchtally import events

pytestmark = pytest.mark.nightly

WORKER = "demo-worker-0"
UP = {MASTER: "up", WORKER: "up"}
ADDED = {"__name__", "instance", "job", "namespace", "pod", "container", "endpoint"}  # by Prometheus, to each series
OPTIONS = [*KIND_VALUES, "--set", "workers=1,metrics.enabled=true"]
ENDLESS = args("--epochs", "100000", "--batch-size", "1000")
FIRING = 'ALERTS{alertstate="firing"}'
READ = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9090/metrics').read().decode())"

REMAINING = "torchtally_remaining_seconds"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@contextmanager
def standing_still(namespace: Namespace) -> Iterator[None]:
    """The master waits for the worker's gradients, and goes on to serve its metrics."""
    act(namespace, WORKER, "stop", "ranks", "any")
    yield
    act(namespace, WORKER, "go", "ranks")


def served(namespace: Namespace) -> Series:
    text = namespace.kubectl("exec", MASTER, "--", "python", "-c", READ)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, frozenset(each.labels.items())): each.value for each in samples}


def scraped(namespace: Namespace, pod: str) -> Series:
    found = prometheus.query(namespace, pod, f'{{__name__=~"torchtally_.+",pod="{MASTER}"}}')
    assert {each["metric"]["namespace"] for each in found} <= {namespace.name}
    return {
        (each["metric"]["__name__"], frozenset((k, v) for k, v in each["metric"].items() if k not in ADDED)): float(
            each["value"][1]
        )
        for each in found
    }


def same(one: Series, other: Series) -> bool:
    """A value that is not known yet is not a number, which equals nothing. The time left grows while all waits."""
    return one.keys() == other.keys() and all(
        value == other[name] or (math.isnan(value) and math.isnan(other[name])) or name[0] == REMAINING
        for name, value in one.items()
    )


def speeds_of_pods(namespace: Namespace, pod: str) -> dict[str, float] | None:
    found = prometheus.query(namespace, pod, "rate(torchtally_pod_samples_total[1m]) > 0")
    speeds = {each["metric"]["pod"]: float(each["value"][1]) for each in found}
    return speeds if speeds.keys() == UP.keys() else None


def check_its_numbers(namespace: Namespace, pod: str) -> None:
    """Those of Prometheus in `pod` are those that the job serves, and that its log has."""
    wait_for("two epochs", lambda: len(namespace.reported(MASTER, events.Epoch)) >= 2)
    speeds = wait_for("speeds of both pods", lambda: speeds_of_pods(namespace, pod))
    assert speeds[MASTER] == pytest.approx(speeds[WORKER], rel=0.5)
    with standing_still(namespace):
        wait_for("the same numbers", lambda: same(scraped(namespace, pod), served(namespace)))
        numbers = scraped(namespace, pod)
        epochs = namespace.reported(MASTER, events.Epoch)
        proofs = Counter((each.phase, each.holds) for each in namespace.reported(MASTER, events.Proved))

    def of(name: str, **labels: str) -> float:
        return numbers[f"torchtally_{name}", frozenset(labels.items())]

    last = epochs[-1]
    assert isinstance(last, events.Epoch)
    assert of("train_epoch_loss") == pytest.approx(last.loss)
    assert of("test_loss") == pytest.approx(last.test_loss)
    assert of("test_accuracy") == pytest.approx(last.test_accuracy)
    assert of("samples_per_second") == pytest.approx(last.samples_per_second, rel=0.01)
    assert 60_000 * last.epoch <= of("samples_total") <= 60_000 * (last.epoch + 1)
    assert of("samples_total") % 1000 == 0
    for phase in ("train", "test"):
        assert of("proofs_total", phase=phase, holds="true") == proofs[phase, True]
        assert of("proofs_total", phase=phase, holds="false") == 0
    assert of("world_size") == 2
    (run,) = [dict(labels) for name, labels in numbers if name == "torchtally_run_info"]
    assert run["task"] == "fashion-mnist" and run["run"] in namespace.log(MASTER)


def check_the_dashboard(namespace: Namespace, pod: str) -> None:
    """Each of its panels shows something."""
    dashboard = json.loads((CHART / "dashboards/torchtally.json").read_text())
    variables = {"$namespace": namespace.name, "$pod": ".*", "$__rate_interval": "1m"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in variables.items():
                expression = expression.replace(name, value)
            wait_for(panel["title"], lambda expression=expression: prometheus.query(namespace, pod, expression))


def test_by_the_annotations_of_the_pods(
    without_pod_monitors: None, prometheus_image: str, operator: None, namespace: Namespace
) -> None:
    prometheus.allow_to_find_pods(namespace)
    prometheus.of_annotations(namespace, "prometheus", prometheus.LABELS)
    prometheus.of_annotations(namespace, "unnamed", {})
    namespace.install(*OPTIONS, *data_values(), *ENDLESS)
    wait_for("the metrics", lambda: prometheus.health(namespace, "prometheus") == UP)
    check_its_numbers(namespace, "prometheus")
    check_the_dashboard(namespace, "prometheus")
    # The NetworkPolicy names Prometheus by its label.
    let_in = "down" if enforces(namespace) else "up"
    wait_for("the other Prometheus", lambda: prometheus.health(namespace, "unnamed") == dict.fromkeys(UP, let_in))


def watched_by_the_operator_s(namespace: Namespace, training: list[str]) -> str:
    """Install the chart, with a Prometheus of the operator, whose pod is returned."""
    prometheus.allow_to_find_pods(namespace)
    prometheus.of_the_operator(namespace, {"release": "monitoring"})
    values = ["--set", "metrics.podMonitorLabels.release=monitoring,metrics.alerts=true"]
    namespace.install(*OPTIONS, *data_values(), *training, *values)
    return prometheus.OF_THE_OPERATOR


def test_by_the_pod_monitor_and_with_the_alerts(
    prometheus_operator: None, operator: None, namespace: Namespace
) -> None:
    pod = watched_by_the_operator_s(namespace, ENDLESS)
    wait_for("the metrics", lambda: prometheus.health(namespace, pod) == UP)
    annotations = namespace.list("pod")[MASTER]["metadata"]["annotations"]
    assert not [name for name in annotations if name.startswith("prometheus.io/")]
    check_its_numbers(namespace, pod)
    check_the_dashboard(namespace, pod)
    (group,) = yaml.safe_load((CHART / "alerts/torchtally.yaml").read_text())["groups"]
    names = [rule.get("alert") or rule["record"] for rule in group["rules"]]
    wait_for("the rules", lambda: prometheus.rules(namespace, pod) == dict.fromkeys(names, "ok"))
    assert prometheus.query(namespace, pod, "run:torchtally_epoch:max")
    assert prometheus.query(namespace, pod, FIRING) == []


def test_an_alert_fires_where_a_run_restarts_without_progress(
    prometheus_operator: None, operator: None, namespace: Namespace
) -> None:
    """Three kills in an epoch of some minutes."""
    pod = watched_by_the_operator_s(namespace, args("--epochs", "3", "--batch-size", "1", "--save-seconds", "2"))

    def attempt() -> float:
        found = prometheus.query(namespace, pod, "run:torchtally_attempt:max and run:torchtally_epoch:max == 1")
        return max((float(each["value"][1]) for each in found), default=-1.0)

    for kills in range(3):
        wait_for(f"attempt {kills} in its first epoch", lambda kills=kills: attempt() == kills)
        assert prometheus.query(namespace, pod, FIRING) == []
        act(namespace, MASTER, "kill", "ranks", "any")
    (alert,) = wait_for("the alert", lambda: prometheus.query(namespace, pod, FIRING))
    assert alert["metric"]["alertname"] == "TorchtallyRestartsWithoutProgress"
    assert alert["metric"]["run"] in namespace.log(MASTER)
