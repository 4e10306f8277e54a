"""The process group of torchtally's own collectives, beside those of the program that it runs in."""

import os
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from torchtally.environment import call_seconds
from torchtally.errors import Refused

_LONGER = 10  # seconds than a handshake, which ends first: it can name the ranks that do not come
DESTROYED = "the program has called destroy_process_group(): call it after the end of the account's `with` statement"
# The default group then, and ours.
_made: tuple["weakref.ref[dist.ProcessGroup]", "weakref.ref[dist.ProcessGroup]"] | None = None


def unkept(group: dist.ProcessGroup) -> Callable[[], dist.ProcessGroup]:
    """A function that returns `group`, which PyTorch alone keeps, until the program destroys its groups.

    The group's threads end then. If something else keeps it, they can abort Python at exit. If garbage keeps it, a
    worker of a DataLoader hangs or crashes once it collects that: a forked process does not have the threads.
    """
    kept = weakref.ref(group)

    def found() -> dist.ProcessGroup:
        if (there := kept()) is None:
            raise Refused(DESTROYED)
        return there

    return found


def of_all() -> dist.ProcessGroup:
    """Return a gloo group of all processes, whatever the default group's backend is. A collective call.

    The default group may be in use by another thread at the same time, as it is by torch's asynchronous checkpoints:
    both would take each other's messages.
    """
    global _made
    default, own = (each() for each in _made) if _made else (None, None)
    if own is not None and default is dist.group.WORLD:
        return own
    made = dist.new_group(backend="gloo", timeout=timedelta(seconds=call_seconds(os.environ) + _LONGER))
    assert isinstance(made, dist.ProcessGroup) and dist.group.WORLD is not None  # which it is for its members
    _made = weakref.ref(dist.group.WORLD), weakref.ref(made)
    return made
