"""The start and the end of a command-line program: encodings, Ctrl-C, and an output that cannot be written."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path


class _Unwritten(Exception):
    """The output could not be written: one sentence, which is empty if nobody reads on."""


def run(main: Callable[[], int]) -> int:
    """Run `main`. Returns its exit status, 130 after Ctrl-C, or 1 where the output could not be written."""
    if sys.stdout is None:  # closed when Python started: a stream that fails at each write, too
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a pod's name, or a ±, that the encoding cannot show
    try:
        return main()
    except KeyboardInterrupt:
        return 130
    except _Unwritten as sentence:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python must not try again at exit
        if str(sentence):
            with contextlib.suppress(OSError):
                print(f"{Path(sys.argv[0]).stem}: {sentence}", file=sys.stderr)
        return 1


def show(text: str) -> None:
    """Print a text, whole: what could not be written, `run` tells."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `| head`
        raise _Unwritten from None
    except OSError as error:
        raise _Unwritten(f"the result cannot be written to standard output: {error.strerror}") from None
