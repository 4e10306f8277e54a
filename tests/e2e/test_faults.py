"""What befalls pods under the real operator: the job ends with the weights of an undisturbed one, and proves them.

All rows are `make e2e-faults`; `make e2e` leaves out those marked `nightly`. Either takes `-k` with a row's name.
"""

import functools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

import faults
import nodes
import own
import pytest
from cluster import Namespace, script
from fault_table import Row, last, lost_and_duplicated, record
from faults import DATA, LAST_STEP, MASTER, MID_EPOCH, PODS, RENDEZVOUS, SAVE, Fault, delete, kill
from own import Training

from torchtally import events

WORKER = "demo-worker-1"
Around = Callable[[Namespace], AbstractContextManager[list[str]]]
_PROGRESS = (events.Saved, events.Epoch)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    fault: str  # in the table
    disturb: Fault
    policy: str = "OnFailure"
    restarts: bool | None = True  # whether pods start again; None: that is a matter of a moment
    options: list[str] = field(default_factory=list)
    around: Around = nodes.nothing
    own: Training | None = None  # in place of a task
    same: bool = True  # the weights, as those of an undisturbed training; not with another number of ranks
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
    if deed is kill and moment in (MID_EPOCH, SAVE) and policy == "ExitCode":
        more.setdefault("restarts", None)  # the pods may start again without their containers
    return Case(
        name=f"{what}-{who}-{when.replace(' ', '-')}",
        fault=f"kill -9 the {part} in {named}, {when}" if deed is kill else f"delete {named}'s pod, {when}",
        disturb=deed(pod, moment),
        policy=policy,
        around=place,
        needs="own_cluster" if moment == DATA else "operator",
        **more,
    )


def to_a_node(
    name: str, fault: str, disturb: Fault, policy: str = "OnFailure", around: Around = nodes.restored
) -> Case:
    return Case(name=name, fault=fault, disturb=disturb, policy=policy, around=around, needs="operator_apart")


def of_ones_own(
    training: Training, deed: Callable[[str, str], Fault], pod: str, moment: str, policy: str, nightly: bool = True
) -> Case:
    """The moments of a task, seen in the training's own checkpoints."""
    case = at_a_moment(deed, pod, moment, policy, nightly=nightly)
    seen = {MID_EPOCH: f"own-mid-epoch:{training.whole}", SAVE: f"own-save:{training.whole}"}[moment]
    return _of(training, replace(case, disturb=deed(pod, seen)))


def with_fewer_pods(training: Training) -> Case:
    disturb = faults.continue_with_fewer_pods(f"own-mid-epoch:{training.whole}")
    case = Case(name="fewer-pods", fault="suspended, and resumed with 2 workers", disturb=disturb, same=False)
    return _of(training, case)


def _of(training: Training, case: Case) -> Case:
    own = {"name": f"{training.script.partition('.')[0]}-{case.name}", "fault": f"{training.name}: {case.fault}"}
    return replace(case, **own, own=training, around=nodes.shared_volume, needs="own_cluster")


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
    of_ones_own(own.GPT, kill, WORKER, MID_EPOCH, "OnFailure", nightly=False),
    of_ones_own(own.GPT, kill, MASTER, SAVE, "ExitCode"),
    of_ones_own(own.GPT, delete, WORKER, MID_EPOCH, "ExitCode"),
    of_ones_own(own.GPT, delete, MASTER, SAVE, "OnFailure"),
    with_fewer_pods(own.GPT),
    of_ones_own(own.TRANSFORMERS, kill, WORKER, MID_EPOCH, "ExitCode", nightly=False),
    of_ones_own(own.TRANSFORMERS, kill, MASTER, SAVE, "OnFailure"),
    of_ones_own(own.TRANSFORMERS, delete, MASTER, MID_EPOCH, "OnFailure"),
    of_ones_own(own.LIGHTNING, kill, MASTER, MID_EPOCH, "OnFailure", nightly=False),
    of_ones_own(own.LIGHTNING, delete, WORKER, MID_EPOCH, "ExitCode"),
    with_fewer_pods(own.LIGHTNING),
    of_ones_own(own.MDS, kill, WORKER, MID_EPOCH, "OnFailure", nightly=False),
    of_ones_own(own.MDS, kill, MASTER, SAVE, "ExitCode"),
    of_ones_own(own.MDS, delete, WORKER, MID_EPOCH, "ExitCode"),
    with_fewer_pods(own.MDS),
    Case(
        name="kill-master-when-all-workers-have-ended",
        fault="kill -9 the agent in the master when all workers have ended",
        disturb=faults.kill_the_master_alone,
        around=faults.lingering,
    ),
    Case(name="kill-twice", fault="two kills, one after the other", disturb=faults.kill_twice),
    Case(
        name="kill-twice",
        fault="two kills, one after the other",
        disturb=faults.kill_twice,
        policy="ExitCode",
        restarts=None,
    ),
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
    to_a_node("drain-node", "a node drained", faults.drain_a_node, "ExitCode"),
    to_a_node("stop-and-start-node", "a node stopped, and started again", faults.stop_a_node_and_start_it),
    to_a_node(
        "stop-node-for-good",
        "a node with workers stopped for good, tainted out-of-service",
        faults.stop_for_good,
        "ExitCode",
    ),
    to_a_node(
        "stop-master-node-for-good",
        "the master's node stopped for good, tainted out-of-service (ReadWriteMany volume)",
        faults.stop_the_master_s_for_good,
        around=nodes.shared_volume,
    ),
]


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
def undisturbed_own(own_cluster: None, operator: None, namespaces: None) -> Callable[[Training, str | None], str]:
    @functools.cache
    def outcome(training: Training, image: str | None) -> str:
        namespace = Namespace(f"torchtally-undisturbed-{training.script.partition('.')[0].replace('_', '-')}")
        namespace.create()
        try:
            with nodes.shared_volume(namespace) as options:
                training.start(namespace, *options, image=image)
                return training.outcome(namespace)
        finally:
            namespace.delete()

    return outcome


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.name}-{case.policy}", marks=case.marks) for case in CASES]
)
def test_fault(operator: None, namespace: Namespace, request: pytest.FixtureRequest, case: Case) -> None:
    request.getfixturevalue(case.needs)
    start, outcome = faults.train, faults.weights
    if case.own:
        image = request.getfixturevalue("image_with_libraries") if case.own.libraries else None
        start, outcome = functools.partial(case.own.start, image=image), case.own.outcome
    of_undisturbed = request.getfixturevalue("undisturbed_own")(case.own, image) if case.own else None
    undisturbed = of_undisturbed or request.getfixturevalue("undisturbed")
    with case.around(namespace) as options:
        start(namespace, "--set", f"restartPolicy={case.policy}", *case.options, *options)
        when = case.disturb(namespace)
        model = outcome(namespace)
        verified = script("verify_shards.py", "--json", "--job", "demo", "-n", namespace.name, check=False)
        report = json.loads(verified.stdout)
        restarts = namespace.starts() - len(PODS)
        steps = reported(namespace, MASTER, *(_PROGRESS if case.restarts is False else (events.Step,)))
        stepped = min((each - when for each in steps if each > when), default=None)
        started = last(starts(namespace), when, stepped)
        entered = last((each for pod in PODS for each in reported(namespace, pod, events.Started)), when, stepped)
    lost, duplicated = lost_and_duplicated(report)
    same = model == undisturbed if case.same else None
    record("cluster", Row(case.fault, case.policy, restarts, lost, duplicated, same, started, entered, stepped))
    assert report["holds"], report["problems"]
    assert (lost, duplicated) == (0, 0)
    assert same is not False
    assert case.restarts is None or case.restarts == (restarts > 0), restarts
