"""A drain of a node while a library trains: all ranks save after the same step, and the job continues there."""

import faults
import nodes
import own
import pytest
from cluster import Event, Namespace, verify, wait_for
from faults import MASTER
from own import Training

from torchtally import events

# Each pod has an /output of its own.
OPTIONS = ["--set", "restartPolicy=OnFailure,model.accessMode=ReadWriteOnce"]


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(own.LIGHTNING, id="lightning"),
        pytest.param(own.TRANSFORMERS, id="trainer", marks=pytest.mark.nightly),
        pytest.param(own.ACCELERATE, id="accelerate", marks=pytest.mark.nightly),
        pytest.param(own.KERAS, id="keras", marks=pytest.mark.nightly),
    ],
)
def test_a_drain_costs_no_step(
    operator_apart: None, image_with_libraries: str, namespace: Namespace, training: Training
) -> None:
    def reported(kind: type[Event], previous: bool) -> list[Event]:
        records = events.in_lines(namespace.log(MASTER, previous=previous).split("\n"))
        return [each.event for each in records if isinstance(each.event, kind)]

    with nodes.restored(namespace) as spread:
        training.start(namespace, *OPTIONS, *spread, image=image_with_libraries)
        faults.drain_a_node(namespace, f"own-mid-epoch:{training.whole}")
        # The log of a container's first life goes soon after its second.
        [stopped] = wait_for("all ranks to stop", lambda: reported(events.Stopped, previous=True))
        namespace.wait_for_job("demo", "Succeeded")
    [resumed] = reported(events.Resumed, previous=False)
    assert stopped.saved
    assert (resumed.epoch, resumed.position, resumed.discarded) == (stopped.epoch, stopped.position, 0)
    verify(namespace)
