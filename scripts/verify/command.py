"""How a program that prints for people ends, whatever becomes of who reads it."""

import io
import os
import sys
from collections.abc import Callable


def ended(main: Callable[[], int]) -> int:
    """Run `main`; returns its exit status, or that of what cut it off."""
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
