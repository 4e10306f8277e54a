"""Where a pod's ranks stand: their signs and Python stacks, which torchtally_observer.signs writes in each rank."""

import contextlib
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from torchtally.pod import signals
from torchtally_observer.signs import OVER, SIGN, SIGNAL

_MOST = 1 << 16  # characters of a rank's stacks
_ANSWER = 2.0  # seconds for a rank to write them
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_PYTHONS_OWN = re.compile(r"<frozen |.*/lib/python3\.\d+/(?!site-packages/|dist-packages/)")


@dataclass(frozen=True)
class Sign:
    """What a rank shows."""

    rank: int
    pid: int
    count: int  # batches that were taken; 0 before the first and after the last, and where they are not seen
    over: bool  # all is consumed


def signs(folder: Path) -> Iterator[Sign]:
    """The signs of this pod's ranks."""
    for path in sorted(folder.glob("*.sign")):
        with contextlib.suppress(OSError, struct.error):  # it is just being written
            pid, count = SIGN.unpack(path.read_bytes())
            yield Sign(int(path.stem), pid, max(0, count), count == OVER)


@dataclass(frozen=True)
class Stage:
    """How far the ranks of a pod are."""

    count: int = 0  # of their batches
    over: bool = False  # one has consumed all


def stage(folder: Path) -> Stage:
    """How far this pod's ranks are."""
    found = [*signs(folder)]
    return Stage(sum(sign.count for sign in found), any(sign.over for sign in found))


def cpu_seconds() -> float:
    """The CPU time that the ranks have used, with all that they have started."""
    used = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])  # the children that have ended included
    return used


def all_of(folder: Path, *, others: bool) -> list[tuple[int, str, str]]:
    """Each rank, its place, and its stacks. With `others`, also the ranks that run no Python with stacks."""
    texts = [(sign.rank, of(folder, sign.rank, sign.pid)) for sign in signs(folder)]
    found = {rank: (place(text), text) for rank, text in texts if text}
    for pid in signals.ranks() if others else ():
        with contextlib.suppress(psutil.Error, KeyError):  # it has ended, or waits for its start
            process = psutil.Process(pid)
            innermost = [process, *process.children(recursive=True)][-1]
            found.setdefault(int(process.environ()["RANK"]), (f"the program {innermost.name()}", ""))
    return [(rank, *found[rank]) for rank in sorted(found)]


def of(folder: Path, rank: int, pid: int) -> str:
    """The stacks of all threads of a rank; empty where it is not ready to write them."""
    path = folder / str(rank)
    try:
        if not _catches(pid):
            return ""
        before = size = path.stat().st_size
        os.kill(pid, SIGNAL)
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

    A frame outside Python's own library comes before one in it: it says who sleeps, waits, or reads.
    At Python's end, that thread waits for others: where they stand.
    """
    *others, main = re.split(r"^(?=Current thread |Thread )", stacks, flags=re.MULTILINE)
    ending = _FRAME.search(main)
    if ending and ending["function"] == "_shutdown" and ending["file"].endswith("threading.py"):
        threads = ", ".join(dict.fromkeys(where for each in others if (where := _where(each))))
        return f"{_text(ending)}, which waits for threads: {threads or 'of no Python code'}"
    return _where(main) or "no Python code"


def _where(thread: str) -> str:
    frames = [*_FRAME.finditer(thread)]
    found = next((each for each in frames if not _PYTHONS_OWN.match(each["file"])), next(iter(frames), None))
    return _text(found) if found else ""


def _text(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({Path(frame['file']).name}:{frame['line']})"


def _catches(pid: int) -> bool:
    """Whether a process has a handler, without which the signal would end it."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (SIGNAL - 1) & 1)
