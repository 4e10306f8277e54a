"""A process that ends with its parent, also after kill -9 of that: Linux kills it then.

As a program, `parent_death.py PARENT COMMAND…` becomes the command. It imports nothing from this package.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python from its start on
_NOT_RUN = 126  # as a shell ends then


def end_with(parent: int) -> None:
    """Let this process end with `parent`: with the thread that has forked it, which is the main one of a pod."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


def tied(command: Sequence[str]) -> list[str]:
    """Return the command for a child of this process that ends with it."""
    if sys.platform != "linux":
        return [*command]
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    for each in _IGNORED:
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:  # a script without #!, or one whose interpreter is not here
        print(f"torchtally: {sys.argv[2]!r} cannot be run here: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_RUN)
