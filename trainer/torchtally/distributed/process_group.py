"""The process group of all ranks: its creation after the handshake, and a rank's exit code."""

import functools
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from torchtally.distributed import handshake
from torchtally.environment import Process
from torchtally.errors import FAILED, OK, Ending, Refused, lost_a_peer, peer_lost
from torchtally.log import log
from torchtally.pod import failure

# The timeout of a collective call, in which another rank can be writing a checkpoint. It is for a rank that hangs: the
# rendezvous detects a lost pod sooner.
COLLECTIVE_TIMEOUT = timedelta(minutes=5)

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what a launcher sets for PyTorch


def run(main: Callable[[], None]) -> int:
    """Run a rank's `main`, destroy its process group, and return the exit code."""
    try:
        main()
        dist.destroy_process_group()
    except Ending as ending:
        return failure.end(ending)
    except Exception as error:
        if not lost_a_peer(f"{type(error).__name__}: {error}"):
            failure.record(error)
            traceback.print_exc()
            return FAILED
        return failure.end(peer_lost(error))
    return OK


def join(process: Process, facts: Mapping[str, Any], problem: str | None) -> tuple[Store, str, int]:
    """Join the rendezvous and the handshake of all ranks.

    Returns the job's store, the run's id, and when rank 0 began, in milliseconds since 1970.

    Raises Refused on every rank if facts differ or any rank has a problem, and Lost.
    """
    store, _, _ = next(rendezvous("env://"))
    own = {"world size": process.world, **facts, "PyTorch": torch.__version__}
    own |= {"_run": process.run, "_began": time.time_ns() // 1_000_000}
    agreed = handshake.agree(store, process.rank, process.world, process.pod, own, problem)
    return store, agreed["_run"], agreed["_began"]


def of_one(env: Mapping[str, str]) -> bool:
    """Make the process group of a program that has none and no launcher: this process alone. Returns whether it did.

    Raises Refused if a launcher has set variables, as there can be other processes.
    """
    given = [name for name in _RENDEZVOUS if name in env]
    if dist.is_initialized():
        return False
    if given:
        lacking = [name for name in _RENDEZVOUS if name not in env]
        raise Refused(
            f"the program has no process group, and {', '.join(given)} {'is' if len(given) == 1 else 'are'} set: call "
            "torch.distributed.init_process_group before you make an Account"
            + (f", which needs {', '.join(lacking)} as well" if lacking else "")
        )
    store = dist.HashStore()  # type: ignore[attr-defined]  # it is there, unannounced
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return True


@functools.cache
def warn_of_gloo(device: torch.device) -> None:
    """Say, once, that gradients of GPUs go over gloo, and so through the memory of the host."""
    if device.type == "cuda" and "cuda:gloo" in dist.get_backend_config() and dist.get_world_size() > 1:
        log.warning(
            "the model is on GPUs, and the process group has gloo alone, which is slower than NCCL: "
            'call init_process_group("cpu:gloo,cuda:nccl")'
        )


def create(store: Store, process: Process, device: torch.device) -> None:
    """Create the default group: gloo for tallies and counts and, on GPUs, NCCL for gradients."""
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        timeout=COLLECTIVE_TIMEOUT,
        store=store,
        rank=process.rank,
        world_size=process.world,
        device_id=device if on_gpu else None,
    )
