"""Jobs as gangs under a real scheduler: all pods of a job start, or none does."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import controllers
import nodes
import pytest
from cluster import KIND_VALUES, ROOT, Namespace, Object, args, data_values, run, stays, verify, wait_for
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
    priority: str | None = None  # the value of the chart that orders waiting jobs, where there is one


VOLCANO = Scheduler(
    release=controllers.VOLCANO,
    heading="## Volcano",
    name="volcano",
    policy="volcano",
    priority="schedulingPolicy.priorityClass",
)
COSCHEDULING = Scheduler(
    release=controllers.COSCHEDULING,
    heading="## Coscheduling",
    name="scheduler-plugins-scheduler",
    policy="coscheduling",
)


@pytest.fixture(
    scope="module", params=[pytest.param(VOLCANO, id="volcano"), pytest.param(COSCHEDULING, id="coscheduling")]
)
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
    section = GUIDE.read_text().partition(f"{scheduler.heading}\n")[2]
    commands = re.findall(r"^```\n(kubectl .*?)^```$", section, re.DOTALL | re.MULTILINE)[0]
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


@pytest.fixture
def queue(cluster: None) -> Iterator[Callable[[int], str]]:
    """Makes a queue of Volcano with slots for so many pods, or changes it; returns its name."""
    name = "torchtally"

    def make(pods: int) -> str:
        manifest = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"capability": {SLOT: pods}},
        }
        run("kubectl", "apply", "--filename=-", text=json.dumps(manifest))
        return name

    yield make
    run("kubectl", "delete", "queues.scheduling.volcano.sh", name, "--wait=false")


def submit(namespace: Namespace, release: str, *options: str) -> None:
    slots = [
        f"--set-json=resources.{kind}={json.dumps(amount)}" for kind, amount in (("requests", SMALL), ("limits", SLOTS))
    ]
    training = args("--epochs", "1", "--batch-size", "125", "--save-seconds", "0.2")
    namespace.install(*KIND_VALUES, *data_values(), *slots, *training, *options, release=release)


def of_trainjob(scheduler: Scheduler) -> list[str]:
    policy = json.dumps({scheduler.policy: {}})
    return [
        f"--set=api=trainjob,model.enabled=false,schedulerName={scheduler.name}",
        f"--set-json=podGroupPolicy={policy}",
    ]


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


def test_jobs_wait_for_one_another(
    gangs: Scheduler, room: Callable[[int], None], priorities: dict[str, str], namespace: Namespace
) -> None:
    room(PODS)
    submit(namespace, "demo")
    with held(namespace, MASTER, "mid-epoch:1"):
        for release, priority in priorities.items():
            submit(namespace, release, *([f"--set={gangs.priority}={priority}"] if gangs.priority else []))
            wait_until_it_waits(namespace, release)
    spans = {}
    for release in ("demo", "high", "low"):
        namespace.wait_for_job(release, "Succeeded")
        assert shards(namespace, release) == PROVED
        spans[release] = span(namespace, release)
    order = sorted(spans, key=spans.__getitem__)
    assert all(spans[one][1] <= spans[next_][0] for one, next_ in pairwise(order)), spans
    if gangs.priority:
        assert order == ["demo", "high", "low"]


def test_a_trainjob_is_a_gang_without_the_operator(
    trainer: None, scheduler: Scheduler, room: Callable[[int], None], namespace: Namespace
) -> None:
    room(PODS - 1)
    submit(namespace, "demo", *of_trainjob(scheduler))
    wait_for("all pods to be made", lambda: len(of(namespace, "demo")) == PODS)
    wait_until_it_waits(namespace, "demo")
    room(PODS)
    namespace.wait_for_job("demo", "Complete", kind="trainjob")
    assert shards(namespace, "demo") == PROVED


@pytest.mark.parametrize("scheduler", [pytest.param(VOLCANO, id="volcano")], indirect=True)
def test_a_queue_of_volcano_gives_jobs_of_both_kinds_what_it_has(
    trainer: None, gangs: Scheduler, room: Callable[[int], None], queue: Callable[[int], str], namespace: Namespace
) -> None:
    room(PODS)
    name = queue(PODS - 1)
    submit(namespace, "demo", f"--set=schedulingPolicy.queue={name}")
    annotation = f"--set=annotations.scheduling\\.volcano\\.sh/queue-name={name}"
    submit(namespace, "other", *of_trainjob(gangs), annotation)
    for release in ("demo", "other"):
        wait_until_it_waits(namespace, release)
        assert namespace.list("podgroups.scheduling.volcano.sh")[release]["spec"]["queue"] == name
    queue(PODS)
    namespace.wait_for_job("demo", "Succeeded")
    namespace.wait_for_job("other", "Complete", kind="trainjob")
    for release in ("demo", "other"):
        assert shards(namespace, release) == PROVED
