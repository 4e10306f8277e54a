"""Lines on standard output, without an error if the disk is full, the reader has left, or a character has no code."""

import atexit
import contextlib
import os
import sys

from torchtally.log import log

_reported = False


def write(text: str) -> None:
    """Print a text and a newline; raises nothing. The first failure is reported on stderr."""
    if sys.stdout is None:  # closed when Python started
        _report("it is closed")
        return
    try:
        # One write for text and newline together: processes of a pod share its log, and print() makes two.
        sys.stdout.write(_encodable(text) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: the program has closed it
        _report(error)


def flush() -> None:
    """Write what is buffered, before this process ends or is forked; raises nothing."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        _report(error)


def encoding() -> str:
    """The encoding of standard output."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _encodable(text: str) -> str:
    """The text with an escape such as `\\xe4` in place of a character that the encoding lacks."""
    return text.encode(encoding(), "backslashreplace").decode(encoding())


def _report(error: object) -> None:
    global _reported
    if not _reported:
        _reported = True
        atexit.register(_discard)
        log.warning(f"standard output cannot be written ({error}): the program continues, but its lines are missing")


def _discard() -> None:
    """Discard what could not be written. Otherwise, Python tries again at its end, and fails with exit code 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stdout.flush()
