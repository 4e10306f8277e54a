"""A rank's signs for `torchtally run`: that it continues, and where it stands, which faulthandler writes at a signal.

A rank has two files in a folder that the entry point makes: its stacks, and a sign of how many batches it has taken.
One process of a rank has them, although what it starts has the same environment: the first Python, until another one
trains.
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
_FIRST, _TRAINS = 0, 1  # bytes of the sign that a process locks


class _Signs:
    """What a rank keeps open."""

    def __init__(self, folder, rank):
        self.pid, self.count, self.trains = os.getpid(), 0, False
        self._name = os.path.join(folder, rank)
        self._file = os.fdopen(os.open(self._name + ".sign", os.O_RDWR | os.O_CREAT), "r+b", 0)
        self._map = None

    def lock(self, first, count):
        """Take these bytes. Raises OSError if another process has one of them."""
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)

    def unlock(self, first):
        """Let another process take a byte."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, first)

    def has_trained(self):
        """Whether the sign is that of a process that has taken batches, and has ended."""
        sign = os.pread(self._file.fileno(), SIGN.size, 0)
        return len(sign) == SIGN.size and SIGN.unpack(sign)[1] != 0

    def give(self):
        """Have the sign, and write the stacks at a signal."""
        if self._map is None:
            self._file.write(SIGN.pack(self.pid, 0))
            self._map = mmap.mmap(self._file.fileno(), SIGN.size)
            self._stacks = open(self._name, "w")  # noqa: SIM115
            faulthandler.register(SIGNAL, self._stacks)

    def show(self, count):
        """Change the sign, unless another process has it by now."""
        if self.trains:
            SIGN.pack_into(self._map, 0, self.pid, count)


_signs = None


def ready():
    """Be ready to write the stacks, if this is the first Python of a rank."""
    _be(trains=False)


def give():
    """Give a sign at each batch. It may be called again."""
    _be(trains=True)


def _be(trains):
    global _signs
    folder, rank = os.environ.get("TORCHTALLY_STACKS"), os.environ.get("RANK")
    if not (SIGNAL and folder and rank):
        return
    own = _signs if _signs and _signs.pid == os.getpid() else None  # not those of the process that this is a fork of
    if own and own.trains:
        return
    _signs = own
    try:
        new = own or _Signs(folder, rank)
        if trains:
            new.lock(_TRAINS, 1)
        else:
            new.lock(_FIRST, 2)
            if new.has_trained():  # this one was started by it, and says nothing of the rank
                return
            new.unlock(_TRAINS)
        new.give()
        new.trains, _signs = trains, new
    except (OSError, RuntimeError, ValueError):  # a full disk
        pass


def taken():
    """A batch is taken, or a step made."""
    if _signs:
        _signs.count += 1
        _signs.show(_signs.count)


def over():
    """All is consumed: nothing more is expected."""
    _show(OVER)


def unseen():
    """Batches are no longer seen: their absence means nothing."""
    _show(0)


def _show(count):
    if _signs:
        _signs.show(count)
