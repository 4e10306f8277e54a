"""Reads each log once: its lines go to the verifier's log, and to the record of what happened."""

from dataclasses import dataclass, field
from typing import TextIO

from torchtally.record.record import Record
from torchtally.verifier.log import Log


@dataclass
class RecordingLog(Log):
    """The verifier's log, of which a record is made at the same time."""

    record: Record = field(default_factory=Record)
    _pod: str = ""  # whose lines are read

    def read(self, source: str, stream: TextIO) -> None:
        self._pod = source.removeprefix("pod ")
        super().read(source, stream)

    def add(self, text: str, where: str) -> None:
        self.record.add(self._pod, text)
        super().add(text, where)

    def add_line(self, pod: str, text: str) -> None:
        """Add one line that a pod has just printed."""
        self._pod = pod
        self.add(text, f"pod {pod}")
