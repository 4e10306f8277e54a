"""The start and the end of a command-line program: encodings, Ctrl-C, and a reader that leaves early."""

import io
import os
import sys
from collections.abc import Callable


def run(main: Callable[[], int]) -> int:
    """Run `main`. Returns its exit status, 130 after Ctrl-C, or 1 after the reader of its output has left."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a pod's name, or a ±, that the encoding cannot show
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`: nobody reads on, and Python must not try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
