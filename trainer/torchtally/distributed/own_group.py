"""The process group of torchtally's own collectives, beside those of the program that it runs in."""

import weakref

import torch.distributed as dist

from torchtally.distributed.handshake import COLLECTIVE_TIMEOUT

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
    made = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    assert isinstance(made, dist.ProcessGroup) and dist.group.WORLD is not None  # which it is for its members
    _made = weakref.ref(dist.group.WORLD), weakref.ref(made)
    return made
