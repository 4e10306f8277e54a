"""Reads each log once: its lines go to the verifier's log, and to the record of what happened."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TextIO

from torchtally.record.record import Record
from torchtally.verifier.log import Log
from torchtally.verifier.wrapped import Unwrapping

_WANTED = "TORCHTALLY"  # the beginning of tally lines and of events
_LONGEST = 1 << 20  # characters of a line


@dataclass
class RecordingLog(Log):
    """The verifier's log, of which a record is made at the same time."""

    record: Record = field(default_factory=Record)

    def read(self, source: str, stream: TextIO) -> None:
        pod = source.removeprefix("pod ")
        unwrapping = Unwrapping(_WANTED, _LONGEST)
        super().read(source, _Tee(stream, lambda text: self._tell(pod, unwrapping.lines(text))))  # type: ignore[arg-type]
        self._tell(pod, unwrapping.rest())

    def add_line(self, pod: str, text: str) -> None:
        """Add one line that a pod has just printed."""
        self.record.add(pod, text)
        self.add(text, f"pod {pod}")

    def _tell(self, pod: str, lines: Iterable[str]) -> None:
        for line in lines:
            self.record.add(pod, line)


class _Tee:
    """A stream whose lines somebody else is told as well."""

    def __init__(self, stream: TextIO, tell: Callable[[str], None]) -> None:
        self._stream, self._tell = stream, tell

    def readline(self, size: int) -> str:
        text = self._stream.readline(size)
        self._tell(text)
        return text
