"""A rank of a real task whose sampler has a fault: `python faulty.py FAULT TASK [options]`, FAULT out of toy.py."""

import sys
from collections.abc import Iterator

import toy

from torchtally.accounting.order.schedule import Schedule
from torchtally.commands import train
from torchtally.pod import failure
from torchtally.proof.permutation import Indices

fault = getattr(toy, sys.argv.pop(1))
arrays = Schedule.arrays


def faulty(schedule: Schedule) -> Iterator[Indices]:
    Schedule.arrays = arrays  # type: ignore[method-assign]  # of which the fault makes its own
    try:
        return iter([each.numpy() for each in fault(schedule)])
    finally:
        Schedule.arrays = faulty  # type: ignore[method-assign]


Schedule.arrays = faulty  # type: ignore[method-assign]
failure.exit_rank(train.main())  # as a rank does it
