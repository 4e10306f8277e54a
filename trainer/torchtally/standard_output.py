"""Lines on standard output, which a full disk, a reader that is gone, or an encoding of few characters never stops."""

import atexit
import contextlib
import os
import sys

from torchtally.log import log

_reported = False


def write(text: str) -> None:
    """Print a text with its newline; raises nothing. The first one that cannot be printed is reported on stderr."""
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
    """The text with `\\xe4` in place of a character that the encoding lacks."""
    return text.encode(encoding(), "backslashreplace").decode(encoding())


def _report(error: object) -> None:
    global _reported
    if not _reported:
        _reported = True
        atexit.register(_discard)
        log.warning(f"standard output cannot be written ({error}): the program continues, and its lines are missing")


def _discard() -> None:
    """Discard what could not be written. Python's own try at its end would fail, and give the exit code 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stdout.flush()
