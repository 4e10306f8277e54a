"""The attempts of a pod that counts its restarts itself: each is a fork of a process that has imported torch.

A failure ends an attempt, and the pod with it, unless the pod is sound: its ranks have trained, and the failure is
another pod's, or a rank was killed for the first time. The next attempt then begins in the pod. All that an attempt
does, it does as the entry point of a pod that was started again.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torchtally import standard_output
from torchtally.errors import LOST, REFUSED, RETRIED, SIGNALLED
from torchtally.pod import parent_death, signals, termination_message

_PR_SET_CHILD_SUBREAPER = 36
_CLEAN_SECONDS = 1  # for Python's resource tracker to remove the shared memory of what has ended
_END_SECONDS = 10  # for killed processes to end
_AGAIN = b"again"
_HANDLED = {*signals.STOPPING, signal.SIGCHLD}
_KILLED = SIGNALLED + signal.SIGKILL
# A rank was killed, or another pod was told to stop. A rank that is killed each time may lack the memory that a new pod
# has, and what SIGTERM ends is not counted.
_ONCE = (_KILLED, SIGNALLED + signal.SIGTERM)

started_before = False  # whether this process is an attempt after the first


def possible() -> bool:
    """Whether this process can run attempts: it can be forked, and all its children are those of an attempt.

    A shell that has become this process, as by `exec torchtally run …`, may have left it others.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and not any(signals.children())


def confirmed(code: int) -> int:
    """Return the exit code of an attempt. What a later one refuses, such as a GPU, a new container has to refuse."""
    return RETRIED if started_before and code == REFUSED else code


def run(attempt: Callable[[Callable[[], object]], Any]) -> Any:
    """Run `attempt(again)` in a fork, and once more if it has called `again` and its exit code permits that.

    Returns:
        The exit code of the last one. In a rank that an attempt has forked: what the attempt returned there.
    """
    global started_before
    gc.freeze()  # a collection in an attempt would copy what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started this process may have ignored it: no end would be told
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # an attempt's orphans become children of this process
    parent, more = os.getpid(), True
    while True:
        standard_output.flush()
        sys.stderr.flush()
        here, there = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
        if not pid:
            os.close(here)
            return _attempt(attempt, there, parent)
        os.close(there)
        code, stopped = _wait(pid)
        again = _read(here) == _AGAIN and not stopped and (code == LOST or (code in _ONCE and more))
        if not (again and _end_orphans()):
            return confirmed(code)  # a signal is too late, and stays blocked
        more &= code == LOST
        started_before = True
        termination_message.write("")


def _attempt(attempt: Callable[[Callable[[], object]], Any], told: int, parent: int) -> Any:
    """In the fork. Returns in a rank alone."""
    os.setsid()  # a terminal would send a signal to this process as well, beside the one that is forwarded
    parent_death.end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    own = os.getpid()
    found = attempt(lambda: os.write(told, _AGAIN))
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
        got = signal.sigwaitinfo(_HANDLED)
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


def _read(told: int) -> bytes | None:
    """Read what an attempt that has ended has told. What it has left behind may hold the other end of the pipe."""
    os.set_blocking(told, False)
    with os.fdopen(told, "rb") as file:
        return file.read()


def _end_orphans() -> bool:
    """End what an attempt has left behind, as the end of a container does. Returns whether all of it has ended."""
    _signal_orphans(signal.SIGTERM, but_daemons=True)  # a tracker, which ignores it, waits for the others to end
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < _END_SECONDS:
        if seconds > _CLEAN_SECONDS:
            _signal_orphans(signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.01)
    return False


def _signal_orphans(number: signal.Signals, but_daemons: bool = False) -> None:
    """A leader of a session, such as PyTorch's manager of shared memory, is no worker of a rank."""
    for pid, _, _ in signals.children():
        if not (but_daemons and os.getsid(pid) == pid):
            with contextlib.suppress(PermissionError):  # it has become another user's
                os.kill(pid, number)  # it exists until this process has waited for it
