"""What this machine gives a pod: cores, GPUs, ports."""

import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from math import ceil
from pathlib import Path

from torchtally.local.job import Pod

NVIDIA_GPU = "nvidia.com/gpu"

# Below the ports that Linux and macOS hand out for outgoing connections.
_PORTS = range(20000, 30000)


def cores(pods: Sequence[Pod]) -> dict[str, list[int]]:
    """The cores of each pod that has a CPU limit, dealt in turn; a pod that may use all of them is left out."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # macOS has none
    dealt = cycle(available)
    wanted = {pod.name: ceil(pod.limit("cpu")) for pod in pods}
    return {name: sorted(islice(dealt, count)) for name, count in wanted.items() if 0 < count < len(available)}


def gpus() -> list[str]:
    """The indices of this machine's NVIDIA GPUs."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.stdout.split() if answer.returncode == 0 else []


def visible_gpus(pods: Sequence[Pod], available: Sequence[str]) -> dict[str, list[str]]:
    """The GPUs of each pod, dealt in turn: as in a cluster, a pod sees those that it asked for and no others."""
    dealt = cycle(available)
    wanted = {pod.name: int(pod.limit(NVIDIA_GPU)) for pod in pods}
    return {name: list(islice(dealt, min(count, len(available)))) for name, count in wanted.items()}


def ports() -> Iterator[int]:
    """Free ports; no other run of this user takes them before this process ends."""
    path = Path(tempfile.gettempdir(), f"torchtally-ports-{os.getuid()}")
    # Byte n of this file is locked for port n; the locks go with the process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for port in random.sample(_PORTS, len(_PORTS)):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            continue
        yield port
