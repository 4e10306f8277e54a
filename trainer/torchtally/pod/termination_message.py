"""The termination message of a pod: `kubectl describe pod` shows it once the container has ended."""

import contextlib
import os

from torchtally import families
from torchtally.environment import termination_log
from torchtally.log import log

# The kubelet keeps the last 4096 bytes of each container's message, and 12 KiB of a pod's.
_BYTES = 4096


def announce(message: object, logged: bool = False) -> None:
    """Log `message` with its link, unless a rank has `logged` it, and make both the pod's termination message."""
    text = families.with_link(str(message))
    if not logged:
        log.error(text)
    write(text)


def write(message: object) -> None:
    """Make `message` the pod's termination message. Outside a cluster, nothing happens.

    The file is a mount of its own: it can be written under a read-only root, and neither renamed nor replaced.
    """
    text = str(message).encode()[:_BYTES].decode(errors="ignore").encode()
    with contextlib.suppress(OSError):
        file = os.open(termination_log(), os.O_WRONLY | os.O_TRUNC)  # and never O_CREAT
        with os.fdopen(file, "wb") as opened:
            opened.write(text)


def keep(line: str) -> None:
    """Add the last line of a run, if there is room: the pod's status has it even where its log is rotated."""
    text = f"{line}\n".encode()
    with contextlib.suppress(OSError):
        file = os.open(termination_log(), os.O_WRONLY | os.O_APPEND)
        with os.fdopen(file, "ab") as opened:
            if os.fstat(file).st_size + len(text) <= _BYTES:
                opened.write(text)
