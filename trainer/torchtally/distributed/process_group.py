"""All ranks of a built-in task meet: each finds its place and its data, all agree, and a process group is there."""

import errno
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from torchtally.atomic_file import replace
from torchtally.distributed import handshake
from torchtally.environment import Places, Process
from torchtally.errors import FAILED, OK, Ending, Lost, Refused, lost_a_peer
from torchtally.pod import device, failure
from torchtally.training import loop
from torchtally.training.loop import Samples, Task

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a rank needs to begin."""

    process: Process
    run: str  # the run's id, which is rank 0's
    task: Task
    train: Samples  # on the CPU, as `test`
    test: Samples
    device: torch.device


def ended(body: Callable[[], None]) -> int:
    """Run a rank's `body` and its process group to their end; returns the exit code."""
    try:
        body()
        dist.destroy_process_group()
    except Ending as ending:
        return failure.end(ending)
    except Exception as error:
        if not lost_a_peer(f"{type(error).__name__}: {error}"):
            failure.record(error)
            traceback.print_exc()
            return FAILED
        return failure.end(Lost(f"another rank went away ({str(error).splitlines()[0]})"))
    return OK


def meet(name: str, data: Path | None, facts: Mapping[str, Any], prepare: Callable[[], None]) -> Meeting:
    """Load the data of the task `name`, agree on it and on `facts`, and make the process group.

    `prepare` is called on rank 0 alone. Raises Refused on every rank if it did on any, and Lost.
    """
    process = Process.from_env(os.environ)
    places = Places.from_env(os.environ)
    task = loop.task(name)

    # What fails on one pod is said by all of them, so it is carried to the agreement.
    problem = train = test = where = None
    try:
        where = device.choose(places.device, process.local_rank)
        if process.rank == 0:
            prepare()
        began = time.monotonic()
        train, test = task.load(data or places.data, places.cache)
        if process.local_rank == 0:
            print(
                f"torchtally: rank {process.rank} has {len(train)} samples to train with and {len(test)} to test with, "
                f"after {time.monotonic() - began:.1f} s",
                flush=True,
            )
    except Refused as sentence:
        problem = str(sentence)
    facts = {
        "number of training samples": len(train) if train else None,
        "number of test samples": len(test) if test else None,
        "data": task.fingerprint,
        **facts,
        "device": where.type if where else None,
    }
    store, run = agree(process, facts, problem)
    assert train is not None and test is not None and where is not None

    # gloo carries the tallies and counts in any case; on GPUs NCCL carries the gradients.
    if where.type == "cuda":
        backend, bound = "cpu:gloo,cuda:nccl", where
    else:
        backend, bound = "gloo", None
    dist.init_process_group(
        backend, timeout=handshake.COLLECTIVE, store=store, rank=process.rank, world_size=process.world, device_id=bound
    )
    return Meeting(process=process, run=run, task=task, train=train, test=test, device=where)


def agree(process: Process, facts: Mapping[str, Any], problem: str | None) -> tuple[Store, str]:
    """Meet all other ranks, which have to hold the same facts; returns their store, and the run's id.

    Raises Refused on every rank where facts differ or any has a problem, and Lost.
    """
    store, _, _ = next(rendezvous("env://"))
    held = {"world size": process.world, **facts, "PyTorch": torch.__version__, "_run": process.run}
    return store, handshake.agree(store, process.rank, process.world, process.pod, held, problem)["_run"]


def prepare(output: Path) -> None:
    """Make the output folder, and see that it can be written; raises Refused."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        replace(output / ".writable", b"").unlink()
    except OSError as error:
        if error.errno not in _FULL:  # which may be over before anything is to be written
            raise Refused(
                f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}"
            ) from None
