"""The machine, the versions and the commit of a measurement."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = ("torch", "numpy", "keras", "lightning", "accelerate", "torchdata", "mosaicml-streaming", "pillow")


def describe() -> dict[str, str | int | float]:
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.platform(),
    }


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def sentence(*packages: str) -> str:
    """The machine, the versions of these packages, the load at the end, and the commit: the note below a table."""
    about = describe()
    python = "".join([f"python {platform.python_version()}", *(f", {name} {version(name)}" for name in packages)])
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB; {python}; "
        f"load average {os.getloadavg()[0]:.1f} at the end; commit {commit()}."
    )


def commit() -> str:
    """The commit, with a + if the tree has changes."""
    return _git("rev-parse", "--short", "HEAD") + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
