"""Where the time went from the creation of a job's pods to its first step."""

from dataclasses import replace

import pytest

from torchtally.jobs import starting
from torchtally.record.model import Life, Pod

# In whole seconds, as a cluster tells its moments; those of the pods are finer.
MASTER = Life(
    attempt=0,
    created=101.0,
    scheduled=105.0,  # its volume's provisioning included
    container=109.0,
    started=112.25,
    rendezvous=116.5,
    data=118.0,
    first_step=120.5,
)
WORKER = replace(MASTER, created=100.0, scheduled=101.0, container=111.0, started=115.5, data=117.0, first_step=130.0)


def pod(name: str, *lives: Life) -> Pod:
    return Pod(name=name, ranks=(), processes=1, versions={}, lives=lives)


def found(*pods: Pod) -> starting.Start:
    told = starting.of(pods)
    assert told
    assert sum(told.phases.values()) == pytest.approx(told.seconds)
    for phases in told.pods.values() if told.made else ():
        assert sum(phases.values()) == pytest.approx(told.seconds)
    return told


def phases(*seconds: float) -> dict[str, float]:
    names = ("scheduling", "container", "import", "rendezvous", "data", "first step")
    return dict(zip(names, seconds, strict=True))


def test_each_pod_and_the_job_add_up_to_the_first_step() -> None:
    told = found(pod("demo-master-0", MASTER), pod("demo-worker-0", WORKER))
    assert (told.created, told.seconds, told.made) == (100, 20.5, True)
    # The first step is the master's, of which the worker reports a later one.
    assert told.pods == {
        "demo-master-0": phases(5, 4, 3.25, 4.25, 1.5, 2.5),
        "demo-worker-0": phases(1, 10, 4.5, 1, 0.5, 3.5),
    }
    # From the last pod that was through a phase to the last that was through the next.
    assert told.phases == phases(5, 6, 4.5, 1, 1.5, 2.5)


def test_phases_that_a_pod_does_not_tell_apart_are_joined() -> None:
    silent = replace(WORKER, started=None, rendezvous=None, data=None)
    told = found(pod("demo-master-0", MASTER), pod("demo-worker-0", silent))
    assert list(told.phases) == ["scheduling", "container", "import+rendezvous+data+first step"]


def test_phases_that_a_pod_is_not_through_are_left_out() -> None:
    begins = replace(MASTER, rendezvous=None, data=None, first_step=None)
    pulls = Life(created=100.0, scheduled=104.0)
    told = found(pod("demo-master-0", begins), pod("demo-worker-0", pulls))
    assert (told.phases, told.made) == ({"scheduling": 5}, False)


def test_a_restart_before_the_first_step_is_part_of_the_containers_phase() -> None:
    before = Life(created=100.0, scheduled=101.0, container=103.0, started=104.0, ended=108.0, code=1)
    again = Life(container=111.0, started=115.5, rendezvous=116.5, data=117.0)
    told = found(pod("demo-master-0", MASTER), pod("demo-worker-0", before, again))
    assert told.pods["demo-worker-0"]["container"] == 10
    in_place = replace(again, container=None)
    told = found(pod("demo-master-0", MASTER), pod("demo-worker-0", before, in_place))
    assert (told.pods["demo-worker-0"]["container"], told.pods["demo-worker-0"]["import"]) == (2, 12.5)


def test_a_restart_after_the_first_step_changes_nothing() -> None:
    resumed = Life(attempt=1, container=140.0, started=141.0, rendezvous=142.0, data=143.0, first_step=144.0)
    expected = found(pod("demo-master-0", MASTER), pod("demo-worker-0", WORKER))
    assert found(pod("demo-master-0", MASTER, resumed), pod("demo-worker-0", WORKER, resumed)) == expected


def test_a_pod_that_came_later_is_left_out() -> None:
    anew = replace(WORKER, attempt=1, created=140.0, container=142.0, started=143.0)
    assert list(found(pod("demo-master-0", MASTER), pod("demo-worker-0", anew)).pods) == ["demo-master-0"]


def test_nothing_is_told_without_the_clusters_moments_or_the_first_start() -> None:
    assert starting.of([pod("demo-master-0", replace(MASTER, created=None))]) is None
    assert starting.of([pod("demo-master-0", replace(MASTER, attempt=1))]) is None
    assert starting.of([]) is None
