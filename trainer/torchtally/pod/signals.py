"""How a pod is stopped: the first signal lets its ranks end, a second one ends them at once."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from torchtally.errors import SIGNALLED

# What torchrun takes for the wish to stop. It gets a handler of its own for none of them.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_begun = False


def handle() -> None:
    """From here on a signal raises SignalException, at which torchrun's agent forwards it to the ranks and waits."""
    for each in _SIGNALS:
        signal.signal(each, _stop)


def begun() -> bool:
    """Whether a signal has come."""
    return _begun


def ignore() -> None:
    """From here on signals are of no account: all is done, and the pod about to end."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def over() -> None:
    """From here on any signal ends the pod at once: its ranks have ended."""
    global _begun
    _begun = True


def ranks() -> Iterator[int]:
    """The process ids of this pod's ranks."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # PID (NAME) STATE PPID PGRP …, where NAME may hold anything.
            state, parent, group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended meanwhile
        if state != "Z" and int(parent) == os.getpid() and int(group) != os.getpgrp():
            yield int(entry.parent.name)


def kill_ranks() -> bool:
    """SIGKILL to every rank of this pod and to what it started; returns whether there was one."""
    killed = False
    for rank in ranks():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank, signal.SIGKILL)  # the agent makes each rank the leader of a group
            killed = True
    return killed


def end_ranks(by: signal.Signals, seconds: float) -> None:
    """Hand the signal on to ranks that the agent was starting, and did not know yet, as it came; wait for them."""
    for rank in ranks():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, by)
    until = time.monotonic() + seconds
    while any(ranks()) and time.monotonic() < until:
        time.sleep(0.1)
    kill_ranks()


def _stop(number: int, frame: FrameType | None) -> None:
    global _begun
    if _begun:
        kill_ranks()
        os._exit(SIGNALLED + number)
    _begun = True
    raise SignalException(f"got signal {number}", signal.Signals(number))
