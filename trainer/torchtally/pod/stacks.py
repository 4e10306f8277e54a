"""The Python stacks of a pod's ranks, whatever the ranks do: faulthandler writes them when a signal comes.

Each rank has two files in a folder that the entry point makes: its stacks, and a sign of how much it has consumed.
"""

import contextlib
import faulthandler
import mmap
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_SIGNAL = signal.SIGRTMIN + 9 if sys.platform == "linux" else 0  # that no library uses
_SIGN = struct.Struct("qq")  # process id, and batches that were recorded, or _OVER
_OVER = -1
_MOST = 1 << 16  # characters of a rank's stacks
_ANSWER = 2.0  # seconds for a rank to write them
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class _Listening:
    """What a rank keeps open."""

    def __init__(self, folder: Path, rank: str) -> None:
        self.pid, self.count = os.getpid(), 0
        self.stacks: IO[Any] = (folder / rank).open("w")
        (folder / f"{rank}.sign").write_bytes(_SIGN.pack(self.pid, 0))
        with (folder / f"{rank}.sign").open("r+b") as file:
            self.sign = mmap.mmap(file.fileno(), _SIGN.size)


_listening: _Listening | None = None


def listen() -> None:
    """As a rank, be ready to write the stacks. It may be called again."""
    global _listening
    folder, rank = os.environ.get("TORCHTALLY_STACKS"), os.environ.get("RANK")
    if not (_SIGNAL and folder and rank) or (_listening and _listening.pid == os.getpid()):
        return
    with contextlib.suppress(OSError):  # a full disk
        _listening = _Listening(Path(folder), rank)
        faulthandler.register(_SIGNAL, _listening.stacks)


def consumed() -> None:
    """As a rank, show that it continues."""
    if _listening:
        _listening.count += 1
        _SIGN.pack_into(_listening.sign, 0, _listening.pid, _listening.count)


def over() -> None:
    """As a rank, show that all is consumed, so that nothing more is expected."""
    if _listening:
        _SIGN.pack_into(_listening.sign, 0, _listening.pid, _OVER)


@dataclass(frozen=True)
class Sign:
    """What a rank shows."""

    rank: int
    pid: int
    count: int  # batches that were recorded; 0 before the first and after the last
    over: bool  # all is consumed


def signs(folder: Path) -> Iterator[Sign]:
    """The signs of this pod's ranks."""
    for path in sorted(folder.glob("*.sign")):
        with contextlib.suppress(OSError, struct.error):  # it is just being written
            pid, count = _SIGN.unpack(path.read_bytes())
            yield Sign(int(path.stem), pid, max(0, count), count == _OVER)


def of(folder: Path, rank: int, pid: int) -> str:
    """The stacks of all threads of a rank; empty where it is not ready to write them."""
    path = folder / str(rank)
    try:
        if not _catches(pid):
            return ""
        before = size = path.stat().st_size
        os.kill(pid, _SIGNAL)
        until = time.monotonic() + _ANSWER
        while time.monotonic() < until:
            time.sleep(0.1)
            last, size = size, path.stat().st_size
            if size == last > before:
                break
        return path.read_text(errors="replace")[before:][:_MOST]
    except OSError:  # the rank has ended
        return ""


def place(stacks: str) -> str:
    """Where a rank stands: the innermost frame of its main thread, which faulthandler puts last.

    At Python's end, that waits for other threads: where they stand.
    """
    *others, main = map(_innermost, re.split(r"^(?=Current thread |Thread )", stacks, flags=re.MULTILINE))
    if main.startswith("_shutdown (threading.py") and (threads := [each for each in others if each]):
        return f"{main}, which waits for threads: {', '.join(dict.fromkeys(threads))}"
    return main or "no Python code"


def _innermost(thread: str) -> str:
    found = _FRAME.search(thread)
    return f"{found['function']} ({Path(found['file']).name}:{found['line']})" if found else ""


def _catches(pid: int) -> bool:
    """Whether a process has a handler, without which the signal would end it."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (_SIGNAL - 1) & 1)
