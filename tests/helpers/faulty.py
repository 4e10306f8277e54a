"""A rank of a real task whose sampler has a fault: `python faulty.py FAULT TASK [options]`, FAULT out of toy.py."""

import sys
from collections.abc import Iterator

import toy
from torch import Tensor

from torchtally.accounting.order.schedule import Schedule
from torchtally.commands import train
from torchtally.pod import failure

fault = getattr(toy, sys.argv.pop(1))
tensors = Schedule.tensors


def faulty(schedule: Schedule, device: object) -> Iterator[Tensor]:
    Schedule.tensors = tensors  # type: ignore[method-assign]  # of which the fault makes its own
    try:
        return iter([*fault(schedule)])
    finally:
        Schedule.tensors = faulty  # type: ignore[method-assign]


Schedule.tensors = faulty  # type: ignore[method-assign]
failure.exit_rank(train.main())  # as a rank does it
