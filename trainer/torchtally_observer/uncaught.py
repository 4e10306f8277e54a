"""An error that all ranks of a pod raise: one of them prints its traceback. `torchtally run` has started them."""

import hashlib
import os
import sys
import time
import traceback

_SECONDS = 10  # that a rank waits for the end of another one with the same error
_wanted = True


def print_once():
    """Set sys.excepthook, in a rank of `torchtally run` alone. A second call does nothing."""
    global _wanted
    recorded = os.environ.get("TORCHELASTIC_ERROR_FILE")  # in a folder of the rank, within one of the attempt
    ours = os.environ.get("TORCHTALLY_AGENT") == str(os.getppid())
    if recorded and ours and _wanted:
        _wanted = False
        sys.excepthook = _Hook(sys.excepthook, os.path.dirname(os.path.dirname(recorded)))


class _Hook:
    def __init__(self, before, folder):
        self._before = before
        self._folder = folder
        self._printed = None  # open, and so locked, until this process has ended: its output is then complete

    def __call__(self, kind, error, trace):
        try:
            told = self._told(kind, error, trace)
        except Exception:  # a full disk, or a traceback that cannot be made
            told = False
        if told:
            sys.stderr.write(f"{kind.__name__}: the traceback is that of another rank of this pod\n")
            return
        self._before(kind, error, trace)
        if self._printed is not None:
            self._printed.write("printed")
            self._printed.flush()

    def _told(self, kind, error, trace):
        """Whether another rank has printed this error, and has ended."""
        import fcntl

        text = "".join(traceback.format_exception(kind, error, trace))
        name = hashlib.sha256(text.encode(errors="replace")).hexdigest()
        self._printed = open(os.path.join(self._folder, f"uncaught-{name}"), "a+")  # noqa: SIM115
        until = time.monotonic() + _SECONDS
        while True:
            try:
                fcntl.flock(self._printed, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)
        self._printed.seek(0)
        return self._printed.read() != ""
