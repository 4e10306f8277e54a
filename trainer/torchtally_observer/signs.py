"""A rank's signs for `torchtally run`: that it continues, and where it stands, which faulthandler writes at a signal.

A rank has two files in a folder that the entry point makes: its stacks, and a sign of how many batches it has taken.
"""

import faulthandler
import mmap
import os
import signal
import struct
import sys

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SIGNAL = signal.SIGRTMIN + 9 if sys.platform == "linux" else 0  # that no library uses
SIGN = struct.Struct("qq")  # process id, and batches that were taken, or OVER
OVER = -1


class _Signs:
    """What a rank keeps open."""

    def __init__(self, folder, rank):
        self.pid, self.count = os.getpid(), 0
        self._file = open(os.path.join(folder, rank + ".sign"), "ab+")  # noqa: SIM115
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what a rank starts has its environment, and no sign
        self._file.truncate(0)
        self._file.write(SIGN.pack(self.pid, 0))
        self._file.flush()
        self.map = mmap.mmap(self._file.fileno(), SIGN.size)
        self.stacks = open(os.path.join(folder, rank), "w")  # noqa: SIM115
        faulthandler.register(SIGNAL, self.stacks)


_signs = None


def give():
    """Be ready to write the stacks, and give a sign at each batch. It may be called again."""
    global _signs
    folder, rank = os.environ.get("TORCHTALLY_STACKS"), os.environ.get("RANK")
    if not (SIGNAL and folder and rank) or (_signs and _signs.pid == os.getpid()):
        return
    _signs = None  # those of the process that this one is a fork of
    try:
        _signs = _Signs(folder, rank)
    except (OSError, RuntimeError, ValueError):  # a full disk
        pass


def taken():
    """A batch is taken, or a step made."""
    if _signs:
        _signs.count += 1
        SIGN.pack_into(_signs.map, 0, _signs.pid, _signs.count)


def over():
    """All is consumed: nothing more is expected."""
    _show(OVER)


def unseen():
    """Batches are no longer seen: their absence means nothing."""
    _show(0)


def _show(count):
    if _signs:
        SIGN.pack_into(_signs.map, 0, _signs.pid, count)
