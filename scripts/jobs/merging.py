"""The lines of all pods in the order of their times; lines for programs are folded."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from rich.console import Console
from rich.text import Text

from torchtally import events
from torchtally.proof.line import PREFIX
from torchtally_observer import line as observed
from verify import console

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a pod."""

    time: float  # seconds since 1970; 0 where none is known
    pod: str
    text: str

    @property
    def for_programs(self) -> bool:
        return self.text.startswith((f"{PREFIX}{{", events.PREFIX, observed.PREFIX))


class Printer:
    """Prints lines, each with its pod; neighbouring lines for programs make one."""

    def __init__(self, console: Console, *, fold: bool, as_json: bool) -> None:
        self._console, self._fold, self._json = console, fold, as_json
        self._styles: dict[str, str] = {}
        self._folded = Counter[str]()

    def print(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self._json:
                console.show(json.dumps(asdict(entry)))
                continue
            if self._fold and entry.for_programs:
                kinds = {events.PREFIX: "event", observed.PREFIX: "observed line"}
                self._folded[kinds.get(entry.text.partition("{")[0], "tally line")] += 1
                continue
            self.flush()
            style = self._styles.setdefault(entry.pod, _COLOURS[len(self._styles) % len(_COLOURS)])
            # A bar of progress draws over its line: what a terminal would show in the end.
            text = entry.text.rstrip("\r").rpartition("\r")[2]
            self._console.print(Text.assemble((f"[{entry.pod}] ", style), Text.from_ansi(text)), soft_wrap=True)

    def flush(self) -> None:
        """Print the line of those that are folded."""
        parts = [f"{count} {noun}{'s' * (count > 1)}" for noun, count in sorted(self._folded.items(), reverse=True)]
        if parts:
            self._console.print(Text(f"  … {', '.join(parts)}", "dim"))
        self._folded.clear()


def timed(lines: Iterable[tuple[str, str | None, str]]) -> Iterator[Entry]:
    """The lines of a file, by pod, time, and text: one without a time has that of its event or of the line before."""
    time = 0.0
    for pod, when, text in lines:
        if when:
            time = moment(when)
        elif record := events.read(text):
            time = max(time, record.time)  # as several pods in one file stay in order
        yield Entry(time, pod, text)


def moment(text: str) -> float:
    """Seconds since 1970 of a container runtime's time; 0 where it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
