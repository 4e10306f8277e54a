"""A rank of a real task whose sampler has a fault: `python faulty.py FAULT TASK [options]`, FAULT out of toy.py."""

import sys
from collections.abc import Iterator
from itertools import count, repeat

import toy

from torchtally.accounting.order.schedule import Schedule, Step
from torchtally.commands import train
from torchtally.pod import failure

fault = getattr(toy, sys.argv.pop(1))


def faulty(schedule: Schedule) -> Iterator[Step]:
    indices = (each.numpy() for each in fault(schedule))
    return map(Step, indices, repeat(schedule.batch), count(schedule.position(schedule.skip + 1), schedule.batch))


Schedule.left = faulty  # type: ignore[method-assign]
failure.exit_rank(train.main())  # as a rank does it
