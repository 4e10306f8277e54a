"""Who this process is among the ranks."""

import os
import socket
import sys

_GROUPS = 8
_known = {}  # the newest that torch.distributed has told: it may be gone when the process ends


def look():
    """Ask torch.distributed for this process's rank, while there is a process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    _known.update(rank=distributed.get_rank(), world=distributed.get_world_size())
    _known["groups"] = _groups(distributed, _known["rank"], _known["world"])


def forget():
    """Drop what torch.distributed has told a parent of this process."""
    _known.clear()


def fields():
    """The fields of a line that name the process."""
    values = {
        "pod": os.environ.get("HOSTNAME") or socket.gethostname(),
        "rank": _known.get("rank", _number("RANK", 0)),
        "world": _known.get("world", _number("WORLD_SIZE", 1)),
        "local": _number("LOCAL_RANK", None),
        "restart": _number("TORCHELASTIC_RESTART_COUNT", 0),
    }
    if _known:
        values["grouped"] = True
    if _known.get("groups"):
        values["groups"] = _known["groups"]
    return values


def _number(name, default):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def _groups(distributed, rank, world):
    """The smaller groups that this rank is in, as of a device mesh: the ranks of each."""
    try:
        ranks = [sorted(each) for each in distributed.distributed_c10d._world.pg_group_ranks.values()]
    except Exception:
        return []
    found = [each for each in ranks if rank in each and 1 < len(each) < world and len(each) <= 64]
    return [list(each) for each in sorted(set(map(tuple, found)))][:_GROUPS]
