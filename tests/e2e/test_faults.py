"""What befalls pods under the real operator: the job ends with the weights of an undisturbed one, and proves them.

All rows are `make e2e-faults`; `make e2e` leaves out those marked `nightly`. Either takes `-k` with a row's name.
"""

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

import faults
import nodes
import pytest
from cluster import KIND_VALUES, ROOT, Namespace, data_values, run
from fault_table import Row, last, lost_and_doubled, record
from faults import DATA, LAST_STEP, MASTER, MID_EPOCH, PODS, RENDEZVOUS, SAVE, Fault, delete, kill

from torchtally import events

WORKER = "demo-worker-1"
GPT = ["--steps", "400", "--batch", "4", "--length", "16", "--width", "16", "--save-every", "0.5s"]
TRAINING = ["--set-json", f'args=["--epochs", "{faults.EPOCHS}", "--batch-size", "125", "--save-seconds", "0.2"]']
_PROGRESS = (events.Saved, events.Epoch)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    fault: str  # in the table
    disturb: Fault
    policy: str = "OnFailure"
    restarts: bool | None = True  # whether pods start again; None: that is a matter of a moment
    options: list[str] = field(default_factory=list)
    around: Callable[[Namespace], AbstractContextManager[list[str]]] = nodes.nothing
    own: bool = False  # examples/gpt.py in place of a task
    needs: Literal["operator", "own_cluster", "operator_apart"] = "operator"
    nightly: bool = True

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        return [pytest.mark.nightly] if self.nightly else []


def at_a_moment(deed: Callable[[str, str], Fault], pod: str, moment: str, policy: str, **more: object) -> Case:
    what = "kill" if deed is kill else "delete"
    who, named = ("master", "the master") if pod == MASTER else ("worker", "a worker")
    part = "agent" if moment == RENDEZVOUS else "trainer"
    when, place = {
        DATA: ("while data is fetched", nodes.slow_data),
        RENDEZVOUS: ("at rendezvous", nodes.nothing),
        MID_EPOCH: ("mid-epoch", nodes.nothing),
        SAVE: ("during a save", nodes.nothing),
        LAST_STEP: ("after the last step", nodes.nothing),
    }[moment]
    return Case(
        name=f"{what}-{who}-{when.replace(' ', '-')}",
        fault=f"kill -9 the {part} in {named}, {when}" if deed is kill else f"delete {named}'s pod, {when}",
        disturb=deed(pod, moment),
        policy=policy,
        around=place,
        needs="own_cluster" if moment == DATA else "operator",
        **more,
    )


def of_ones_own(deed: Callable[[str, str], Fault], pod: str, moment: str, policy: str, nightly: bool = True) -> Case:
    case = at_a_moment(deed, pod, moment, policy, nightly=nightly)
    own = {"name": f"own-{case.name}", "fault": f"GPT under FSDP2: {case.fault}", "own": True}
    return replace(case, **own, around=nodes.shared_volume, needs="own_cluster")


CASES = [
    at_a_moment(kill, MASTER, MID_EPOCH, "OnFailure"),
    at_a_moment(kill, WORKER, MID_EPOCH, "ExitCode"),
    at_a_moment(kill, MASTER, SAVE, "ExitCode", nightly=False),
    at_a_moment(kill, WORKER, DATA, "OnFailure"),
    at_a_moment(kill, MASTER, RENDEZVOUS, "OnFailure"),
    at_a_moment(kill, WORKER, RENDEZVOUS, "ExitCode"),
    at_a_moment(kill, MASTER, LAST_STEP, "ExitCode"),
    at_a_moment(kill, WORKER, LAST_STEP, "OnFailure"),
    at_a_moment(delete, WORKER, MID_EPOCH, "ExitCode", nightly=False),
    at_a_moment(delete, MASTER, MID_EPOCH, "OnFailure"),
    at_a_moment(delete, MASTER, SAVE, "ExitCode"),
    at_a_moment(delete, MASTER, DATA, "ExitCode"),
    at_a_moment(delete, WORKER, RENDEZVOUS, "OnFailure"),
    at_a_moment(delete, MASTER, LAST_STEP, "OnFailure"),
    at_a_moment(delete, WORKER, LAST_STEP, "ExitCode", restarts=None),
    at_a_moment(kill, MASTER, DATA, "ExitCode"),
    at_a_moment(kill, WORKER, SAVE, "OnFailure"),
    at_a_moment(delete, MASTER, RENDEZVOUS, "ExitCode"),
    at_a_moment(delete, WORKER, DATA, "OnFailure"),
    at_a_moment(delete, WORKER, SAVE, "ExitCode"),
    of_ones_own(kill, WORKER, MID_EPOCH, "OnFailure", nightly=False),
    of_ones_own(kill, MASTER, SAVE, "ExitCode"),
    of_ones_own(delete, WORKER, MID_EPOCH, "ExitCode"),
    of_ones_own(delete, MASTER, SAVE, "OnFailure"),
    Case(
        name="kill-master-when-all-workers-have-ended",
        fault="kill -9 the agent in the master when all workers have ended",
        disturb=faults.kill_the_master_alone,
        around=faults.lingering,
    ),
    Case(name="kill-twice", fault="two kills, one after the other", disturb=faults.kill_twice),
    Case(name="kill-twice", fault="two kills, one after the other", disturb=faults.kill_twice, policy="ExitCode"),
    Case(
        name="out-of-memory",
        fault="a worker's memory limit exceeded (OOMKilled)",
        disturb=faults.exhaust_memory,
        options=["--set", "resources.memory=1Gi,shmSize=1Gi"],
        nightly=False,
    ),
    Case(
        name="volume-full",
        fault="the checkpoints' volume full for a while",
        disturb=faults.fill_the_volume,
        restarts=False,
        around=nodes.small_volume,
        needs="own_cluster",
        nightly=False,
    ),
    Case(
        name="name-gone",
        fault="the master's name gone for 20 s, a worker killed in them",
        disturb=faults.forget_the_master_s_name,
    ),
    Case(
        name="freeze-worker",
        fault="a worker's pod frozen for 30 s",
        disturb=faults.freeze(WORKER),
        restarts=False,
        nightly=False,
    ),
    Case(
        name="freeze-master",
        fault="the master's pod frozen for 30 s",
        disturb=faults.freeze(MASTER),
        policy="ExitCode",
        restarts=False,
    ),
    Case(
        name="suspend-and-resume",
        fault="the job suspended and resumed",
        disturb=faults.suspend_and_resume,  # as Kueue does it: test_kueue.py
    ),
    Case(
        name="drain-node",
        fault="a node drained",
        disturb=faults.drain_a_node,
        policy="ExitCode",
        around=nodes.restored,
        needs="operator_apart",
    ),
    Case(
        name="stop-and-start-node",
        fault="a node stopped, and started again",
        disturb=faults.stop_a_node_and_start_it,
        around=nodes.restored,
        needs="operator_apart",
    ),
    Case(
        name="stop-node-for-good",
        fault="a node with workers stopped for good, tainted out-of-service",
        disturb=faults.stop_for_good,
        policy="ExitCode",
        around=nodes.restored,
        needs="operator_apart",
    ),
    Case(
        name="stop-master-node-for-good",
        fault="the master's node stopped for good, tainted out-of-service (ReadWriteMany volume)",
        disturb=faults.stop_the_master_s_for_good,
        around=nodes.shared_volume,
        needs="operator_apart",
    ),
]


def train(namespace: Namespace, *options: str) -> None:
    namespace.install(*KIND_VALUES, *data_values(), *TRAINING, *options)


def train_own(namespace: Namespace, *options: str) -> None:
    command = ["run", "--", "python", "/files/gpt.py", *GPT]
    script = [
        "--set-file",
        rf"files.gpt\.py={ROOT / 'examples/gpt.py'}",
        "--set",
        "task=,model.accessMode=ReadWriteMany",
    ]
    namespace.install(*KIND_VALUES, *script, "--set-json", f"args={json.dumps(command)}", *options)


def sample(namespace: Namespace) -> str:
    """What the GPT makes up, which follows from its weights, once the job has succeeded."""
    namespace.wait_for_job("demo", "Succeeded")
    (found,) = re.findall("^sample: (.*)$", namespace.log(MASTER), re.MULTILINE)
    return found


def weights(namespace: Namespace) -> str:
    """Their hash, as the master reports it, once the job has succeeded."""
    namespace.wait_for_job("demo", "Succeeded")
    (found,) = {event.model for event in namespace.reported(MASTER, events.Complete)}
    assert found
    return found


def reported(namespace: Namespace, pod: str, *kinds: type[events.Event]) -> list[float]:
    """When the pod reported it, in its container's life and in the one before; seconds since 1970."""
    logs = (namespace.log(pod, previous=previous) for previous in (False, True))
    records = [record for log in logs for record in events.in_lines(log.split("\n"))]
    return [record.time for record in records if isinstance(record.event, kinds)]


def starts(namespace: Namespace) -> list[float]:
    """When the containers started, of each pod the last two times; seconds since 1970, whole ones."""
    statuses = [each for pod in namespace.list("pod").values() for each in pod["status"].get("containerStatuses", [])]
    states = [state for each in statuses for kind in ("state", "lastState") for state in each[kind].values()]
    return [datetime.fromisoformat(state["startedAt"]).timestamp() for state in states if state.get("startedAt")]


@pytest.fixture(scope="session")
def undisturbed(operator: None, namespaces: None) -> str:
    namespace = Namespace("torchtally-undisturbed")
    namespace.create()
    try:
        train(namespace)
        return weights(namespace)
    finally:
        namespace.delete()


@pytest.fixture(scope="session")
def undisturbed_own(own_cluster: None, operator: None, namespaces: None) -> str:
    namespace = Namespace("torchtally-undisturbed-own")
    namespace.create()
    try:
        with nodes.shared_volume(namespace) as options:
            train_own(namespace, *options)
            return sample(namespace)
    finally:
        namespace.delete()


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.name}-{case.policy}", marks=case.marks) for case in CASES]
)
def test_fault(namespace: Namespace, request: pytest.FixtureRequest, case: Case) -> None:
    request.getfixturevalue(case.needs)
    start, outcome = (train_own, sample) if case.own else (train, weights)
    undisturbed = request.getfixturevalue("undisturbed_own" if case.own else "undisturbed")
    with case.around(namespace) as options:
        start(namespace, "--set", f"restartPolicy={case.policy}", *case.options, *options)
        when = case.disturb(namespace)
        model = outcome(namespace)
        script = str(ROOT / "scripts/verify_shards.py")
        verified = run(sys.executable, script, "--json", "--job", "demo", "-n", namespace.name, check=False)
        report = json.loads(verified.stdout)
        restarts = namespace.starts() - len(PODS)
        steps = reported(namespace, MASTER, *(_PROGRESS if case.restarts is False else (events.Step,)))
        stepped = min((each - when for each in steps if each > when), default=None)
        started = last(starts(namespace), when, stepped)
        entered = last((each for pod in PODS for each in reported(namespace, pod, events.Started)), when, stepped)
    lost, doubled = lost_and_doubled(report)
    same = model == undisturbed
    record("cluster", Row(case.fault, case.policy, restarts, lost, doubled, same, started, entered, stepped))
    assert report["holds"], report["problems"]
    assert (lost, doubled, model) == (0, 0, undisturbed)
    assert case.restarts is None or case.restarts == (restarts > 0), restarts
