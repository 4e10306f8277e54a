"""Memory of this pod's container and of the GPUs of this process, by files and counters that cost no step anything."""

from dataclasses import dataclass
from pathlib import Path

import torch

_ROOT = Path("/sys/fs/cgroup")  # of the container, as Kubernetes and Docker mount it
# Of both versions of cgroups: in use, the limit, and the files of `in use` that the kernel drops first.
_FILES = (
    ("memory.current", "memory.max", "memory.stat", "inactive_file"),
    ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
_NO_LIMIT = 1 << 60  # bytes; version 1 has a number as great as this where there is none


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes; None where they are not known."""

    memory: int | None = None  # in use, as `kubectl top` counts it
    memory_limit: int | None = None
    gpu_memory: int | None = None  # that PyTorch holds
    gpu_memory_total: int | None = None


def now(root: Path = _ROOT) -> Memory:
    """What is used now. Outside of a container, there is no memory of a pod."""
    used, limit = next((found for files in _FILES if (found := _of_container(root, *files))), (None, None))
    held, total = _of_gpus()
    return Memory(memory=used, memory_limit=limit, gpu_memory=held, gpu_memory_total=total)


def _of_container(root: Path, current: str, most: str, stat: str, inactive: str) -> tuple[int, int | None] | None:
    try:
        used, stated = int((root / current).read_text()), (root / most).read_text().strip()
        counts = dict(line.split() for line in (root / stat).read_text().splitlines())
        limit = None if stated == "max" else int(stated)
        used = max(0, used - int(counts[inactive]))
    except (OSError, ValueError, LookupError):
        return None
    if limit is not None and limit >= _NO_LIMIT:  # the whole machine looks like this, too
        return None
    return used, limit


def _of_gpus() -> tuple[int | None, int | None]:
    """Of the GPUs that this process uses. The driver is not asked: a question could break a capture of a CUDA graph."""
    if not torch.cuda.is_initialized():
        return None, None
    held = {gpu: torch.cuda.memory_reserved(gpu) for gpu in range(torch.cuda.device_count())}
    used = [gpu for gpu, size in held.items() if size]
    if not used:
        return None, None
    return sum(held.values()), sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in used)
