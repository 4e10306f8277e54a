"""A lock on a folder of checkpoints: only one process at a time writes there, rank 0 of one start.

The kernel releases the lock when the process ends, also after kill -9. If the node is gone, an NFS server releases it
when the node's lease expires. The JSON beside it only names the holder in messages.
"""

import contextlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from torchtally.environment import job_address, pod_name
from torchtally.errors import Refused, Volume
from torchtally.log import log

_FILE, _HOLDER = ".in-use", ".in-use.json"
_PROGRESS = 30  # seconds between two messages
_locks: dict[tuple[int, str], FileLock] = {}  # by process and folder; each counts its uses, a fork inherits none


def hold(folder: Path, wait: float = 300.0) -> None:
    """Use `folder` until `release`, or the end of this process.

    Waits for an earlier pod of the same job, which is about to end or whose node's lease is. If the folder cannot be
    locked, this is reported.

    Raises:
        Refused: Another job, or another start on this machine, uses the folder.
        Volume: An earlier pod of the same job still uses it after `wait` seconds.
    """
    until, reported, job = time.monotonic() + wait, -float("inf"), job_address()
    lock = _lock(folder)
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
            break
        except Timeout:
            holder = _holder(folder)
        except OSError as error:
            log.info(f"{folder} cannot be locked ({error.strerror}): a second start in it is not noticed")
            return
        if job is None or holder.get("job") != job:
            raise Refused(f"{folder} is in use by {_named(holder)}: wait until that ends, or choose another folder")
        if time.monotonic() > until:
            raise Volume(f"{folder} is still in use by {_named(holder)}, an earlier pod of this job")
        if time.monotonic() > reported + _PROGRESS:
            reported = time.monotonic()
            log.info(f"waits for the end of {_named(holder)}, an earlier pod of this job, which still uses {folder}")
        time.sleep(0.2)
    own = {"pod": pod_name(), "process": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", "job": job}
    with contextlib.suppress(OSError):  # a full disk
        (folder / _HOLDER).write_text(json.dumps(own))


def release(folder: Path) -> None:
    """End one use of `folder`."""
    _lock(folder).release()


def _lock(folder: Path) -> FileLock:
    path = os.path.realpath(folder)
    if (key := (os.getpid(), path)) not in _locks:
        # A file in place of a lock would outlive its process.
        _locks[key] = FileLock(Path(path, _FILE), thread_local=False, fallback_to_soft=False)
    return _locks[key]


def _holder(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / _HOLDER).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(holder: dict[str, object]) -> str:
    if "pod" not in holder:
        return "another start"
    return f"{holder['pod']} (process {holder.get('process')}, since {holder.get('since')})"
