"""Faults that a seed draws, under the real operator: `make e2e-faults ARGS='--seeds 20'`; 17-17 is one seed."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import faults
import nodes
import pytest
from cluster import Namespace, run, script
from fault_table import lost_and_duplicated
from faults import MASTER, PODS, inside

AWAY = 20  # seconds

pytestmark = pytest.mark.nightly


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", metafunc.config.getoption("--seeds") or [])


@dataclass(frozen=True, kw_only=True)
class Strike:
    moment: str
    fault: str
    pod: str


def schedule(seed: int) -> tuple[str, list[Strike]]:
    """A restart policy, and faults: those of one moment befall the job together."""
    draw = Random(f"cluster {seed}")
    epochs = sorted(draw.randint(1, faults.EPOCHS) for _ in range(draw.choice([1, 1, 2, 3])))
    strikes = [
        Strike(moment=f"mid-epoch:{epoch}", fault=draw.choice([*FAULTS]), pod=draw.choice(PODS)) for epoch in epochs
    ]
    return draw.choice(["OnFailure", "ExitCode"]), strikes


# What can befall a job that stands still. What is returned befalls it when it goes on.
After = Callable[[], object]


def _kill(part: str) -> Callable[[Namespace, str], After | None]:
    def kill(namespace: Namespace, pod: str) -> None:
        inside(namespace, pod, "kill", part, "any")  # in vain if another fault has ended it

    return kill


def _delete(namespace: Namespace, pod: str) -> None:
    namespace.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")


def _erase(namespace: Namespace, pod: str) -> None:
    namespace.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found", "--force", "--grace-period=0")


def _drain(namespace: Namespace, pod: str) -> After:
    node = nodes.of(namespace, pod)
    nodes.drain(node, wait=False)

    def after() -> None:
        nodes.drain(node)
        run("kubectl", "uncordon", node)

    return after


def _cut_off(namespace: Namespace, pod: str) -> After:
    """No packet goes from the pod, and none to it."""
    found = namespace.list("pod")[pod]
    node, address = found["spec"]["nodeName"], found["status"]["podIP"]

    def rule(how: str) -> None:
        nodes.on(node, "; ".join(f"iptables {how} FORWARD {way} {address} -j DROP" for way in ("-s", "-d")))

    rule("-I")

    def after() -> None:
        time.sleep(AWAY)
        rule("-D")

    return after


def _without_the_api_server(namespace: Namespace, pod: str) -> After:
    """And without the operator, which is beside it."""
    _kill("ranks")(namespace, pod)

    def after() -> None:
        node = nodes.control_plane()
        run("docker", "pause", node)
        time.sleep(AWAY)
        run("docker", "unpause", node)

    return after


def _suspend(namespace: Namespace, pod: str) -> After:
    faults.suspend(namespace)
    return lambda: faults.resume(namespace)


FAULTS: dict[str, Callable[[Namespace, str], After | None]] = {
    "kill -9 the trainer": _kill("ranks"),
    "kill -9 the agent": _kill("agent"),
    "delete the pod": _delete,
    "delete the pod at once": _erase,
    "drain the pod's node": _drain,
    "cut the pod off": _cut_off,
    "the API server away": _without_the_api_server,
    "suspend and resume the job": _suspend,
}


@contextmanager
def still(namespace: Namespace, moment: str) -> Iterator[bool]:
    """The training stands still at this moment; false where it is over before."""
    when = None
    while not when and not {"Succeeded", "Failed"} & namespace.conditions("demo").keys():
        when, _ = inside(namespace, MASTER, "stop", "ranks", moment)
    try:
        yield bool(when)
    finally:
        inside(namespace, MASTER, "go", "ranks")  # unless it is gone


def test_drawn(operator_apart: None, undisturbed: str, namespace: Namespace, seed: int) -> None:
    policy, strikes = schedule(seed)
    with nodes.shared_volume(namespace) as options:
        faults.train(namespace, "--set", f"restartPolicy={policy},backoffLimit=100", *options)
        for moment in dict.fromkeys(each.moment for each in strikes):
            with still(namespace, moment) as in_time:
                together = [each for each in strikes if each.moment == moment and in_time]
                befall = [FAULTS[each.fault](namespace, each.pod) for each in together]
            for after in filter(None, befall):
                after()
        model = faults.weights(namespace)
        verified = script("verify_shards.py", "--json", "--job", "demo", "-n", namespace.name, check=False)
    report = json.loads(verified.stdout)
    assert (report["holds"], lost_and_duplicated(report), model) == (True, (0, 0), undisturbed), (
        policy,
        strikes,
        report,
    )
