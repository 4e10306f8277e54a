"""The pods' output: complete lines, each prefixed with the name of its pod."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import BinaryIO

_COLOURS = (36, 33, 32, 35, 34, 31)  # cyan first, for the Master
_FOR_PROGRAMS = (b"TORCHTALLY ", b"TORCHTALLY-EVENT ")  # tally lines and events
_OBSERVED = b"TORCHTALLY-OBSERVED "  # likewise, perhaps behind a progress bar


class Output:
    """The pods' lines go to stdout, the runner's own messages to stderr.

    With a `log`, all lines of the pods go to the log, and stdout shows only the lines for people.
    """

    def __init__(
        self,
        names: Sequence[str],
        stream: BinaryIO | None = None,
        colour: bool | None = None,
        log: BinaryIO | None = None,
    ) -> None:
        self._stream, self._log = stream or sys.stdout.buffer, log
        self._unwritten: set[BinaryIO] = set()  # reported streams
        self.last: dict[str, str] = {}  # the last line for people, by pod
        self.observed: list[str] = []  # the lines of observers
        if colour is None:
            colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._prefixes = {
            name: f"\x1b[{_COLOURS[i % len(_COLOURS)]}m[{name}]\x1b[0m ".encode() if colour else f"[{name}] ".encode()
            for i, name in enumerate(names)
        }

    async def pump(self, name: str, reader: asyncio.StreamReader) -> None:
        """Pass on a pod's lines until it has no more."""
        rest = bytearray()
        while chunk := await reader.read(1 << 16):
            rest += chunk
            if b"\n" in chunk:
                *lines, last = rest.split(b"\n")
                self._write(name, lines)
                rest = bytearray(last)
        if rest:
            self._write(name, [rest])

    def say(self, text: str) -> None:
        """Say a sentence of the runner's own."""
        say(text)

    def _write(self, name: str, lines: Sequence[bytearray]) -> None:
        # A progress bar draws over its line with \r: what a terminal would show in the end is what counts.
        seen = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
        shown = [text for text in map(_for_people, seen) if text is not None]
        if said := next((text for text in reversed(shown) if text.strip()), None):
            self.last[name] = said.decode(errors="replace").strip()
        self.observed += [line.decode(errors="replace") for line in seen if _OBSERVED in line]
        # One write, so that pods of two runs into one pipe do not mix within a line either.
        if self._log:
            self._append(self._log, b"".join(b"[%s] %s\n" % (name.encode(), line) for line in seen))
            seen = shown
        self._append(self._stream, b"".join(self._prefixes[name] + line + b"\n" for line in seen))

    def _append(self, stream: BinaryIO, text: bytes) -> None:
        """Write to a stream. Raises BrokenPipeError. Any other error is reported, and the job continues."""
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if stream not in self._unwritten:
                self._unwritten.add(stream)
                where = "--log" if stream is self._log else "standard output"
                say(f"{where} cannot be written ({error.strerror}): the job continues, but its lines are missing there")


def _for_people(line: bytearray) -> bytearray | None:
    """What people read of a line; None if it is for programs."""
    before, observed, _ = line.partition(_OBSERVED)
    return None if line.startswith(_FOR_PROGRAMS) or (observed and not before.strip()) else before


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader has left
        print(f"torchtally local: {text}", file=sys.stderr, flush=True)
