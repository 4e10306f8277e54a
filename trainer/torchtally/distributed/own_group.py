"""The process group of torchtally's own collectives, beside those of the program that it runs in."""

import torch.distributed as dist

from torchtally.distributed.handshake import COLLECTIVE_TIMEOUT

_made: tuple[dist.ProcessGroup | None, dist.ProcessGroup] | None = None  # the default group then, and ours


def of_all() -> dist.ProcessGroup:
    """Return a gloo group of all processes, whatever the default group's backend is. A collective call.

    The default group may be in use by another thread at the same time, as it is by torch's asynchronous checkpoints:
    both would take each other's messages.
    """
    global _made
    if _made is None or _made[0] is not dist.group.WORLD:
        made = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        assert isinstance(made, dist.ProcessGroup)  # which it is for its members
        _made = dist.group.WORLD, made
    return _made[1]
