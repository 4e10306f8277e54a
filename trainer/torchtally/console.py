"""The start and the end of a command that people run: options, encodings, signals, an output that cannot be written."""

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from torchtally import families
from torchtally.errors import Ending, Refused

_OF_WRITING = {errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE}


class Parser(argparse.ArgumentParser):
    """Raises Refused for a mistake: argparse would print its usage in each pod. Its subparsers do so, too."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; `{self.prog} --help` lists the options")


class _Unwritten(Exception):
    """The output could not be written. The text is a sentence, or empty if the reader has left."""


def run(command: str, main: Callable[[], int]) -> int:
    """Run a command. Returns its exit status, 128 + n after signal n, or 1 if the output could not be written."""
    if sys.stdout is None:  # closed when Python started: a stream in its place, which fails at each write
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    # Without a handler, PID 1 of a container ignores it.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a pod's name, or a ±, that the encoding cannot show
    try:
        try:
            return main()
        except OSError as error:  # of what prints without `show`, as Rich does
            if error.filename is None and error.errno in _OF_WRITING:
                raise _unwritten(error) from None
            raise
    except Refused as refused:  # a mistake on the command line
        return refuse(command, refused)
    except KeyboardInterrupt:
        return 130
    except _Unwritten as sentence:
        if str(sentence):
            with contextlib.suppress(OSError):
                print(f"{command}: {sentence}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # as the process had it
        _discard()


def _discard() -> None:
    """Discard what could not be written: Python would try again at its end, and fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(command: str, ending: Ending) -> int:
    """Print why a command ends. Returns its exit status."""
    print(f"{command}: {families.with_link(str(ending))}", file=sys.stderr)
    return ending.code


def show(text: str, end: str = "\n") -> None:
    """Print a text. If it cannot be written, `run` reports this and returns 1."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise _unwritten(error) from None


def _unwritten(error: OSError) -> _Unwritten:
    left = isinstance(error, BrokenPipeError)  # `| head`
    return _Unwritten("" if left else f"the result cannot be written to standard output: {error.strerror}")
