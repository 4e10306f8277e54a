"""Signals that stop a pod: the first one lets its ranks end, a second one kills them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from torchtally.errors import SIGNALLED

# The signals that torchrun handles by default. Its own handlers are not installed.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_came: float | None = None  # when a signal did, time.monotonic()
_over = False


def handle() -> None:
    """From here on a signal raises SignalException. torchrun's agent then forwards it to the ranks and waits."""
    for each in STOPPING:
        signal.signal(each, _stop)


def came() -> bool:
    """Whether a signal has come."""
    return _came is not None


def since() -> float:
    """Seconds since the signal came."""
    return time.monotonic() - _came if _came is not None else 0.0


def begun() -> bool:
    """Whether the end of this pod has begun: a signal has come, or its ranks have ended."""
    return came() or _over


def ignore() -> None:
    """From here on signals are ignored: the pod has succeeded and is about to end."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)


def over() -> None:
    """From here on a signal ends the pod at once: its ranks have ended."""
    global _over
    _over = True


def children() -> Iterator[tuple[int, bytes, int]]:
    """Yield the process ID, state, and process group of each child of this process."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # PID (NAME) STATE PPID PGRP …, where NAME may hold anything.
            state, parent, group = entry.read_bytes().rpartition(b")")[2].split()[:3]
        except OSError:
            continue  # it has ended meanwhile
        if int(parent) == os.getpid():
            yield int(entry.parent.name), state, int(group)


def ranks() -> Iterator[int]:
    """Yield the process IDs of this pod's ranks."""
    for pid, state, group in children():
        if state != b"Z" and group != os.getpgrp():
            yield pid


def kill_ranks() -> bool:
    """Send SIGKILL to every rank of this pod and to its children. Returns whether there was one."""
    killed = False
    for rank in ranks():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank, signal.SIGKILL)  # the agent makes each rank the leader of a group
            killed = True
    return killed


def end_ranks(by: signal.Signals, seconds: float) -> None:
    """Forward the signal to ranks that the agent had started without knowing them yet, and wait for them."""
    for rank in ranks():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, by)
    until = time.monotonic() + seconds
    while any(ranks()) and time.monotonic() < until:
        time.sleep(0.1)
    kill_ranks()


def _stop(number: int, frame: FrameType | None) -> None:
    global _came
    if begun():
        kill_ranks()
        os._exit(SIGNALLED + number)
    _came = time.monotonic()
    raise SignalException(f"got signal {number}", signal.Signals(number))
