"""Leaves the forks of this process little to copy: each copies the pages of memory that it writes to, one by one."""

import ctypes
import functools
import gc
import importlib.metadata
import platform
import signal
import weakref
from collections.abc import Mapping
from pathlib import Path

CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # the number of the system call
_PARENT, _CLEAR_TID, _SET_TID = 0x8000, 0x200000, 0x1000000  # of clone
_GET_TID_ADDRESS = 40  # of prctl
_COLLAPSE = 25  # of madvise
_HUGE = 1 << 21


def fork_sibling() -> int:
    """As os.fork(), for a child of this process' parent: two forks in its place would copy twice as much."""
    python, libc, tid = ctypes.pythonapi, ctypes.PyDLL(None), ctypes.c_void_p()
    libc.prctl(_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0)  # where the C library keeps it
    python.PyOS_BeforeFork()
    # It is the last argument but one on x86_64, and the last on aarch64.
    pid = int(libc.syscall(CLONE, _PARENT | _SET_TID | _CLEAR_TID | signal.SIGCHLD, 0, 0, tid, tid))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid


def prepare() -> None:
    """Do once what each fork would do, and keep its writing away from what is shared."""
    import torch

    torch._dynamo.trace_rules.clear_lru_cache()  # as init_process_group does
    for each in ((), [], {}, "", b"", 0, 0.0, None, torch.empty(0)):
        isinstance(each, Mapping)  # asks all its subclasses, and remembers
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
    importlib.metadata.entry_points(group="torch.distributed.backends")  # reads a file of each package
    weakref.finalize._registry = {}  # type: ignore[attr-defined]  # torch's take its operators apart at the end
    gc.collect()
    gc.freeze()
    gc.enable()
    _use_up_free_memory()
    _collapse()


def _collapse() -> None:
    """Move what lies in small pages into huge ones: a fork copies, and gives back, one entry for each page."""
    libc = ctypes.PyDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, device, *_ = line.split()
        first, end = (int(each, 16) for each in place.split("-"))
        first, end = -(-first // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if rights == "rw-p" and device == "00:00" and first < end:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _COLLAPSE)  # or fails, and all stays


class _Usage(ctypes.Structure):
    """What mallinfo2() returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*(f"other {number}" for number in range(9)), "top")]


def _use_up_free_memory() -> None:
    """Fill the gaps between objects, for forks to have their own objects in pages of their own."""
    libc = ctypes.PyDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallinfo2.restype, libc.sbrk.restype, libc.malloc.restype = _Usage, ctypes.c_void_p, ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    end_of_gaps = libc.sbrk(0) - libc.mallinfo2().top
    for size in (*(2**power for power in range(20, 10, -1)), *range(1016, 0, -16)):
        while (gap := libc.malloc(size)) < end_of_gaps:
            pass
        libc.free(gap)
