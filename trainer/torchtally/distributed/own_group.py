"""The process group of torchtally's own collectives, beside those of the program that it runs in."""

import os
import weakref
from datetime import timedelta

import torch.distributed as dist

from torchtally.environment import call_seconds

_LONGER = 10  # seconds than a handshake, which ends first: it can name the ranks that do not come
# The default group then, and ours. A program that destroys its groups ends their threads only if nobody keeps them, and
# threads that are left can abort Python at exit.
_made: tuple["weakref.ref[dist.ProcessGroup]", "weakref.ref[dist.ProcessGroup]"] | None = None


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
