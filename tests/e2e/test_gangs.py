"""Jobs as gangs under a real scheduler: all pods of a job start, or none does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import controllers
import nodes
import pytest
from cluster import KIND_VALUES, ROOT, Namespace, Object, data_values, run, stays, verify, wait_for
from faults import MASTER, held

pytestmark = pytest.mark.nightly

GUIDE = ROOT / "docs/guides/queues.md"
SLOT = "example.com/slot"  # each pod needs one, so that the room is exact
SLOTS = {SLOT: 1}
SMALL = {"cpu": "50m", "memory": "256Mi", **SLOTS}
PODS = 4
WAITING = {"FailedScheduling", "Unschedulable"}  # what schedulers report of a pod, and of a gang
PRIORITIES = {"low": 1, "high": 1000}


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    release: controllers.Release
    heading: str  # of the guide's section
    name: str  # that pods have
    policy: str  # of a TrainJob
    priority: str  # the value of the chart by which its jobs wait


VOLCANO = Scheduler(
    release=controllers.VOLCANO,
    heading="## Volcano",
    name="volcano",
    policy="volcano",
    priority="schedulingPolicy.priorityClass",
)


@pytest.fixture(scope="module", params=[pytest.param(VOLCANO, id="volcano")])
def scheduler(own_cluster: None, operator: None, request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """A scheduler beside the cluster's own, of which the operator does not know."""
    found: Scheduler = request.param
    if not controllers.at_hand(found.release):
        pytest.skip(f"E2E_MANIFESTS has no {found.release.name}.yaml")
    controllers.apply(found.release)
    yield found
    controllers.delete(found.release)


@pytest.fixture(scope="module")
def gangs(scheduler: Scheduler, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """The same, and the operator knows, as the guide tells it."""
    commands = GUIDE.read_text().partition(f"{scheduler.heading}\n")[2].split("```")[1]
    with controllers.changed_operator(commands, tmp_path_factory.mktemp("guide")):
        yield scheduler


@pytest.fixture
def room(own_cluster: None) -> Iterator[Callable[[int], None]]:
    """Makes room for so many pods of the job. The cluster has slots for all, but the rest where no pod may be."""

    def make(pods: int | None) -> None:
        here, elsewhere = nodes.workers()[0], nodes.control_plane()
        for node, count in ((here, pods), (elsewhere, None if pods is None else PODS - pods)):
            amount = {SLOT: None if count is None else str(count)}
            patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
            run("kubectl", "patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")

    yield make
    make(None)


@pytest.fixture
def priorities(cluster: None) -> Iterator[dict[str, str]]:
    names = {name: f"torchtally-{name}" for name in PRIORITIES}
    for name, value in PRIORITIES.items():
        run("kubectl", "create", "priorityclass", names[name], f"--value={value}")
    yield names
    run("kubectl", "delete", "priorityclass", *names.values())


def submit(namespace: Namespace, release: str, *options: str) -> None:
    slots = [
        f"--set-json=resources.{kind}={json.dumps(amount)}" for kind, amount in (("requests", SMALL), ("limits", SLOTS))
    ]
    args = ["--epochs", "1", "--batch-size", "125", "--save-seconds", "0.2"]
    namespace.install(
        *KIND_VALUES, *data_values(), *slots, f"--set-json=args={json.dumps(args)}", *options, release=release
    )


def of(namespace: Namespace, release: str) -> dict[str, Object]:
    return {name: pod for name, pod in namespace.list("pod").items() if name.startswith(f"{release}-")}


def placed(namespace: Namespace, release: str) -> int:
    """How many pods of the job have a node."""
    return sum("nodeName" in pod["spec"] for pod in of(namespace, release).values())


def wait_until_it_waits(namespace: Namespace, release: str) -> None:
    """Until the scheduler has looked at the job and found no room; no pod has a node then, and none gets one."""

    def told() -> bool:
        events = json.loads(namespace.kubectl("get", "events", "--output=json"))["items"]
        named = [each for each in events if each["reason"] in WAITING]
        return any(f"{each['involvedObject']['name']}-".startswith(f"{release}-") for each in named)

    wait_for(f"the scheduler to find no room for {release}", told)
    stays(f"{release} without a started pod", 5, lambda: not placed(namespace, release))


def span(namespace: Namespace, release: str) -> tuple[str, str]:
    """When its first container started, and when its last one ended."""
    statuses = [each for pod in of(namespace, release).values() for each in pod["status"]["containerStatuses"]]
    ended = [status["state"]["terminated"] for status in statuses]
    return min(each["startedAt"] for each in ended), max(each["finishedAt"] for each in ended)


def shards(namespace: Namespace, release: str) -> list[list[int]]:
    return sorted(verify(namespace, job=release)["train", 1].values())


PROVED = [[rank, 15000, 15000, 0, 0] for rank in range(PODS)]


def test_a_scheduler_of_which_the_operator_does_not_know_starts_a_part_of_a_job(
    scheduler: Scheduler, room: Callable[[int], None], namespace: Namespace
) -> None:
    room(PODS - 1)
    submit(namespace, "demo", f"--set=schedulerName={scheduler.name},schedulingPolicy.minAvailable={PODS}")
    wait_for("the pods that have room to start", lambda: placed(namespace, "demo") == PODS - 1)


def test_no_pod_starts_before_all_have_room(
    gangs: Scheduler, room: Callable[[int], None], namespace: Namespace
) -> None:
    room(PODS - 1)
    submit(namespace, "demo")
    wait_for("all pods to be made", lambda: len(of(namespace, "demo")) == PODS)
    wait_until_it_waits(namespace, "demo")
    room(PODS)
    namespace.wait_for_job("demo", "Succeeded")
    assert shards(namespace, "demo") == PROVED


def test_jobs_wait_for_one_another_in_the_order_of_their_priorities(
    gangs: Scheduler, room: Callable[[int], None], priorities: dict[str, str], namespace: Namespace
) -> None:
    room(PODS)
    submit(namespace, "demo")
    with held(namespace, MASTER, "mid-epoch:1"):
        for release, priority in priorities.items():
            submit(namespace, release, f"--set={gangs.priority}={priority}")
            wait_until_it_waits(namespace, release)
    spans = []
    for release in ("demo", "high", "low"):
        namespace.wait_for_job(release, "Succeeded")
        assert shards(namespace, release) == PROVED
        spans.append(span(namespace, release))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans


def test_a_trainjob_is_a_gang_without_the_operator(
    trainer: None, scheduler: Scheduler, room: Callable[[int], None], namespace: Namespace
) -> None:
    room(PODS - 1)
    policy = f"--set-json=podGroupPolicy={json.dumps({scheduler.policy: {}})}"
    submit(namespace, "demo", f"--set=api=trainjob,model.enabled=false,schedulerName={scheduler.name}", policy)
    wait_for("all pods to be made", lambda: len(of(namespace, "demo")) == PODS)
    wait_until_it_waits(namespace, "demo")
    room(PODS)
    namespace.wait_for_job("demo", "Complete", kind="trainjob")
    assert shards(namespace, "demo") == PROVED
