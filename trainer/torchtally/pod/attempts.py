"""The attempts of a pod that counts its restarts itself: each is a fork of a process that has imported torch.

A failure ends an attempt, and the pod with it, unless a restart would find the pod as it is: the ranks have trained, so
that the pod is sound, and its controller would replace it whatever it costs. The next attempt then begins in the pod.
Everything that an attempt does, it does as the entry point of a pod that was started again.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchtally import standard_output
from torchtally.errors import SIGNALLED
from torchtally.pod import termination_message

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 10  # for killed processes to end
AGAIN = b"again"


def run(attempt: Callable[[Callable[[], None]], Any]) -> Any:
    """Run `attempt(again)` in a fork, and once more whenever it has called `again` before it ended.

    Returns:
        The exit code of the last one. In a rank that an attempt has forked: what the attempt returned there.
    """
    gc.freeze()  # a collection in an attempt would copy what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started this process may have ignored it: no end would be told
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # an attempt's orphans become children of this process
    parent = os.getpid()
    while True:
        standard_output.flush()
        sys.stderr.flush()
        here, there = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_SIGNALS, signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            os.close(here)
            return _attempt(attempt, there, parent)
        os.close(there)
        code, stopped = _wait(pid)
        with os.fdopen(here, "rb") as told:
            if told.read() != AGAIN or stopped or not _end_orphans():
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_SIGNALS, signal.SIGCHLD})
                return code
        termination_message.write("")


def _attempt(attempt: Callable[[Callable[[], None]], Any], told: int, parent: int) -> Any:
    """In the fork. Returns in a rank alone."""
    os.setsid()  # a terminal would send a signal to this process as well, beside the one that is forwarded
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(SIGNALLED + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_SIGNALS, signal.SIGCHLD})
    own = os.getpid()
    found = attempt(lambda: (os.write(told, AGAIN), None)[1])
    if os.getpid() != own:
        os.close(told)
        return found
    standard_output.flush()
    sys.stderr.flush()
    os._exit(found)


def _wait(pid: int) -> tuple[int, bool]:
    """Forward signals to the attempt until it has ended. Returns its exit code, and whether a signal came."""
    stopped = False
    while True:
        got = signal.sigwaitinfo({*_SIGNALS, signal.SIGCHLD})
        if got.si_signo != signal.SIGCHLD:
            stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, got.si_signo)
            continue
        # Orphans may have ended, too.
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    return code if code >= 0 else SIGNALLED - code, stopped


def _end_orphans() -> bool:
    """Kill what an attempt has left behind, as the end of a container does. Returns whether all of it has ended."""
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)  # it exists until this process has waited for it
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.01)
    return False


def _children() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # PID (NAME) STATE PPID …, where NAME may hold anything.
            if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(entry.parent.name)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)
