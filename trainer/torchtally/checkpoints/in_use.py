"""A lock on a folder of checkpoints: only one process at a time writes there, rank 0 of one start.

The kernel releases the lock when the process ends, also after kill -9. If the node is gone, an NFS server releases it
when the node's lease expires. The contents of the locked file only name the holder in messages.
"""

import contextlib
import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from torchtally.environment import job_address, pod_name
from torchtally.errors import Refused, Volume
from torchtally.log import log

_FILE = ".in-use"
_BYTE = 1 << 30  # that is locked, behind the text: on SMB, a lock keeps others from reading what is locked
_WAIT = 300.0  # seconds, for an earlier pod of the same job, or for its node's lease
_PROGRESS = 30  # seconds between two messages
# By folder: the open file, and how often this process uses the folder. Opening and closing the file again would release
# the lock. A forked process does not inherit the lock.
_held: dict[str, tuple[int, int]] = {}


def hold(folder: Path) -> None:
    """Use `folder` until `release`, or the end of this process.

    Waits for an earlier pod of the same job, which is about to end. If the volume does not support locks, this is
    reported, and nothing is locked.

    Raises:
        Refused: Another job, or another start on this machine, uses the folder.
        Volume: An earlier pod of the same job still uses it after five minutes.
    """
    key = os.path.realpath(folder)
    if key in _held:
        file, uses = _held[key]
        _held[key] = file, uses + 1
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return  # writing the checkpoint reports the error
    try:
        _lock(file, folder)
    except BaseException as error:
        os.close(file)
        if isinstance(error, OSError):
            log.info(f"{folder} does not support locks ({error.strerror}): a second start in it is not noticed")
            return
        raise
    _held[key] = file, 1


def release(folder: Path) -> None:
    """End one use of `folder`."""
    key = os.path.realpath(folder)
    if key in _held:
        file, uses = _held[key]
        if uses > 1:
            _held[key] = file, uses - 1
        else:
            del _held[key]
            os.close(file)


def _lock(file: int, folder: Path) -> None:
    until, reported = time.monotonic() + _WAIT, -float("inf")
    job = job_address()
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _BYTE)
            break
        except (BlockingIOError, PermissionError):  # as POSIX says, either of them
            holder = _holder(file)
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
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(own).encode(), 0)
        os.fsync(file)  # for other nodes


def _holder(file: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(holder: dict[str, object]) -> str:
    if "pod" not in holder:
        return "another start"
    return f"{holder['pod']} (process {holder.get('process')}, since {holder.get('since')})"
