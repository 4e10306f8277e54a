"""The last words of a pod: what `kubectl describe pod` shows of a container that has ended."""

import contextlib
import os
import sys

from torchtally.environment import termination_log

# The kubelet keeps the last 4096 bytes of each container's message, and 12 KiB of a pod's.
_BYTES = 4096


def say(sentence: object) -> None:
    """Print `sentence` and leave it as the pod's termination message."""
    print(f"torchtally: {sentence}", file=sys.stderr, flush=True)
    leave(sentence)


def leave(sentence: object) -> None:
    """Make `sentence` the pod's termination message; outside of a cluster, nothing happens.

    The file is a mount of its own: it can be written under a read-only root, and neither renamed nor replaced.
    """
    text = str(sentence).encode()[:_BYTES].decode(errors="ignore").encode()
    with contextlib.suppress(OSError):
        file = os.open(termination_log(), os.O_WRONLY | os.O_TRUNC)  # and never O_CREAT
        with os.fdopen(file, "wb") as opened:
            opened.write(text)
