"""The start of a rank: environment, data, handshake, process group."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchtally import events
from torchtally.distributed import process_group
from torchtally.environment import Places, Process
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.pod import device
from torchtally.training.task import Samples, Task
from torchtally_observer import signs


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The rank's place, data and device after the handshake."""

    process: Process
    run: str  # the run's id
    began: int  # when rank 0 began this start: milliseconds since 1970
    train: Samples  # on the CPU
    test: Samples  # on the CPU
    device: torch.device


def set_up(task: Task, data: Path | None, facts: Mapping[str, Any], prepare: Callable[[], None]) -> RankContext:
    """Load the data of the task, compare it and `facts` in the handshake, and create the process group.

    Only rank 0 calls `prepare`. Raises Refused on every rank if any rank has a problem, and Lost.
    """
    process = Process.from_env(os.environ)
    places = Places.from_env(os.environ)
    signs.give()

    # The handshake gives a problem of one rank to all, so that all pods report it.
    problem = train = test = where = None
    try:
        where = device.choose(places.device, process.local_rank)
        if process.rank == 0:
            prepare()
        loading = time.monotonic()
        train, test = task.load(data or places.data, places.cache)
        if process.local_rank == 0:
            seconds = time.monotonic() - loading
            log.info(
                f"rank {process.rank} has {len(train)} samples to train with and {len(test)} to test with, "
                f"after {seconds:.1f} s"
            )
            events.emit(
                events.Data(train=len(train), test=len(test), seconds=round(seconds, 3)),
                events.Source(pod=process.pod, rank=process.rank),
            )
    except Refused as refused:
        problem = str(refused)
    facts = {
        "number of training samples": len(train) if train else None,
        "number of test samples": len(test) if test else None,
        "data": task.fingerprint,
        **facts,
        "device": where.type if where else None,
    }
    store, run, began = process_group.join(process, facts, problem)
    assert train is not None and test is not None and where is not None

    process_group.create(store, process, where)
    return RankContext(process=process, run=run, began=began, train=train, test=test, device=where)
