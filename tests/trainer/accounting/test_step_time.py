"""The steps of real ranks are timed, and a pod that is slower than the others is named with the part in which it is."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import alone, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchtally import Account, events
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.reporting import meeting, stragglers
from torchtally.accounting.reporting.step_time import StepTime
from torchtally.accounting.reporting.stragglers import RankTimes
from torchtally.distributed import own_group

SLEEP = 0.1
STEPS = 12


class Points(torch.utils.data.Dataset[torch.Tensor]):
    """One sample a step of each rank; `fetching` is called with the number of each."""

    def __init__(self, n: int, fetching: Callable[[int], None] = lambda number: None):
        self.n, self.fetching, self.fetched = n, fetching, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched += 1
        self.fetching(self.fetched)
        return torch.ones(4)


def wait_for(pid: int, step: int) -> None:
    """Until this process waits in this step, of which its name tells; and then for SLEEP seconds more."""
    ends = time.monotonic() + 60
    while f"({step}) S" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < ends, f"process {pid} is not in step {step}"
        time.sleep(0.001)
    time.sleep(SLEEP)


def trains(slow_in: str) -> dict[str, Any]:
    """Rank 1 is slow: rank 0 waits in each step already. Returns the times of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)

    def late(step: int) -> None:
        if rank == 1:
            wait_for(int(pid), step)

    os.environ["TORCHTALLY_GUARDS"] = "-contents"  # whose reads would be counted
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Account(task="t", plan={"train": 1}) as account:
        account.optimizer(optimizer)
        data = Points(STEPS * world, *([late] if slow_in == "data_wait" else []))
        for step, batch in enumerate(account.loader(data, "train", batch_size=1), 1):
            if slow_in == "compute":
                late(step)
            if rank == 0:
                Path("/proc/self/comm").write_text(str(step))
            optimizer.zero_grad()
            account.weigh(model(batch).sum()).backward()
            optimizer.step()
    return vars(account._counting._steps.total)


@pytest.mark.parametrize("slow_in", ["data_wait", "compute"])
def test_a_step_is_divided_into_its_parts(slow_in: str) -> None:
    fast, slow = (each["result"] for each in run(2, trains, slow_in))
    assert fast["steps"] == slow["steps"] == STEPS
    assert slow[slow_in] >= STEPS * SLEEP
    assert fast["communication"] >= (STEPS - 2) * SLEEP  # DDP forms its buckets anew in the second step


def saves_between_steps() -> dict[str, Any]:
    steps = StepTime()
    began = time.perf_counter()
    steps.begin()
    for _ in steps.fetched(range(3)):
        steps.pause()
        time.sleep(SLEEP)
        dist.all_reduce(torch.ones(1))
        steps.go_on()
        steps.stepped(time.perf_counter())
        time.sleep(SLEEP)
        steps.begin()
    return vars(steps.total) | {"whole": time.perf_counter() - began}


def test_what_is_between_two_steps_is_in_none() -> None:
    for each in run(2, saves_between_steps):
        times = each["result"]
        assert times["steps"] == 3
        assert times["data_wait"] + times["compute"] + times["communication"] <= times["whole"] - 2 * 3 * SLEEP


def meets(slow_steps: int, steps: int) -> list[dict[str, Any]]:
    """Rank 2 computes longer than the others, and after so many steps it does not. Returns what rank 0 has reported."""
    os.environ["TORCHTALLY_PROGRESS_SECONDS"] = "0.1"
    meeting._LEAST_SECONDS = 0.1
    rank = dist.get_rank()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = DistributedDataParallel(model)
    with Account(task="t", plan={"train": 1}) as account:
        account.optimizer(optimizer)
        loader = account.loader(Points(steps * dist.get_world_size()), "train", batch_size=1)
        for step, batch in enumerate(loader, 1):
            time.sleep(SLEEP if rank == 2 and step <= slow_steps else SLEEP / 10)
            optimizer.zero_grad()
            account.weigh(model(batch).sum()).backward()
            optimizer.step()
            dist.barrier(own_group.of_all())  # steps of equal length for the test's sake
    return []


def told(out: str, kind: type[events.Event]) -> Iterator[events.Event]:
    return (record.event for record in events.in_lines(out.splitlines()) if isinstance(record.event, kind))


def test_the_ranks_name_a_slow_pod_until_it_is_not_slow_any_more() -> None:
    first, *others = run(3, meets, 15, 60)
    named = [*told(first["out"], events.Straggler)]
    assert (named[0].slow, named[0].slow_rank, named[0].loses_in) == ("pod-2", 2, "compute")
    assert named[0].seconds >= SLEEP > named[0].others
    assert named[1].slow is None
    assert "pod-2 (rank 2) is slower than the other pods: its steps compute for 0.1" in first["err"]
    assert "no pod is slower than the other pods any more" in first["err"]
    for each in others:
        assert not [*told(each["out"], events.Straggler)]
    reports = [*told(first["out"], events.Progress)]
    # By the word of the fields: the parts of all steps between two reports.
    assert sum(each.timed_steps for each in reports) <= 60
    assert all(each.timed_steps and each.compute > 0 and each.data_wait > 0 for each in reports)
    assert max(each.communication for each in reports) > SLEEP / 2


def tells() -> None:
    one, other = (
        events.Straggler(slow=pod, slow_rank=1, loses_in="compute", seconds=0.3, others=0.1) for pod in ("b", "c")
    )
    meets = meeting.Meeting(
        Run(run="r", attempt=0, pod="a", task="t", plan={}, rank=0, world=1, seed=0, data=""), StepTime()
    )
    for found in (one, None, one, one, one, other, one, other, other, None, other, None, None, None):
        meets._tell(found)


def test_what_two_meetings_find_is_told_once() -> None:
    assert [event.slow for event in told(alone(tells)["out"], events.Straggler)] == ["b", "c", None]


def times(rank: int, pod: str, data_wait: float = 0.01, compute: float = 0.1, trip: float = 0.0002) -> RankTimes:
    return RankTimes(rank=rank, pod=pod, data_wait=data_wait, compute=compute, communication=0.1, trip=trip)


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        ([times(0, "a"), times(1, "b"), times(2, "c")], None),
        (
            [times(0, "a"), times(1, "b", compute=0.3)],
            events.Straggler(slow="b", slow_rank=1, loses_in="compute", seconds=0.3, others=0.1),
        ),
        (
            [times(0, "a", data_wait=0.2, compute=0.15), times(1, "b"), times(2, "c")],
            events.Straggler(slow="a", slow_rank=0, loses_in="data_wait", seconds=0.2, others=0.01),
        ),
        ([times(0, "a"), times(1, "b", compute=0.15), times(2, "c")], None),  # below the factor
        # A pod is as slow as its slowest rank.
        (
            [times(0, "a"), times(1, "a"), times(2, "b"), times(3, "b", compute=0.3)],
            events.Straggler(slow="b", slow_rank=3, loses_in="compute", seconds=0.3, others=0.1),
        ),
        ([times(0, "a"), times(1, "a", compute=0.3)], None),  # one pod
        (
            [times(0, "a", trip=0.0001), times(1, "b", trip=0.05), times(2, "c")],
            events.Straggler(slow="b", slow_rank=1, loses_in="communication", seconds=0.05, others=0.0002),
        ),
        (
            [times(0, "a", trip=0.0001), times(1, "b", trip=0.05)],
            events.Straggler(slow="b", slow_rank=1, loses_in="communication", seconds=0.05, others=None),
        ),
        ([times(0, "a"), times(1, "b", trip=0.004)], None),  # far more than the others, and next to nothing
        ([times(0, "a", trip=0.0001), times(1, "b", trip=0.05), times(2, "c", trip=0.05)], None),  # whose link it is?
        # What is slow itself comes before a link: its messages are late as well.
        (
            [times(0, "a"), times(1, "b", compute=0.3, trip=0.05), times(2, "c")],
            events.Straggler(slow="b", slow_rank=1, loses_in="compute", seconds=0.3, others=0.1),
        ),
    ],
)
def test_which_pod_is_slow(ranks: list[RankTimes], slow: events.Straggler | None) -> None:
    assert stragglers.find(ranks) == slow


def test_a_slow_link_is_named_where_ranks_wait_for_it() -> None:
    ranks = [times(0, "a"), times(1, "b", trip=0.05), times(2, "c")]
    idle = [RankTimes(**{**vars(each), "communication": 0.001}) for each in ranks]
    assert stragglers.find(ranks) and stragglers.find(idle) is None
