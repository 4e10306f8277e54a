"""The observation of a user's program: its ranks write lines, and a pod in no job ends with what they say.

Each line is an event of the pod as well, and counts in its metrics.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally import events
from torchtally.log import log

if TYPE_CHECKING:
    from torchtally.observed.line import Handed
    from torchtally.pod.metrics import Observed

_FILE = "TORCHTALLY_OBSERVED"
_LOOK = 1.0  # seconds between two looks at the file


@contextlib.contextmanager
def told(*, prints: bool) -> Iterator[None]:
    """Give all ranks a file for their lines, and with `prints` print at the end what they say, if there are any.

    The program keeps its exit code, whatever they say. A fork of this process, as a rank is, prints nothing.
    """
    number, name = tempfile.mkstemp(prefix="torchtally-observed-")
    os.close(number)
    os.environ[_FILE] = name
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == own:
            _tell(Path(name), prints=prints)


class Watch:
    """Reads the lines of this start of the pod as they come, in a thread.

    Args:
        pod: Its name.
        port: Where its metrics are served, once there is a line; None for nowhere.
        prints: Whether the pod ends with what the lines say. Ranks leave them off a terminal, which another pod's log
            needs all the same.
    """

    def __init__(self, pod: str, port: int | None, *, prints: bool) -> None:
        self._pod, self._port, self._shows = pod, port, not prints and sys.stderr.isatty()
        self._file = Path(os.environ[_FILE])
        self._at, self._rest = self._file.stat().st_size, b""  # earlier starts in this pod have lines, too
        self._metrics: Observed | None = None
        self._served = contextlib.ExitStack()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self) -> None:
        """Read the last lines: the ranks have ended."""
        self._over.set()
        self._thread.join()
        self._served.close()

    def _watch(self) -> None:
        try:
            while not self._over.wait(_LOOK):
                self._read()
            self._read()
        except Exception as error:  # whatever it is, the pod continues
            log.warning(f"what is observed is no longer reported: {type(error).__name__}: {error}")

    def _read(self) -> None:
        if self._file.stat().st_size <= self._at:
            return
        from torchtally.observed.log import Lines  # which other pods do not wait for

        with self._file.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        for text in whole:
            lines, line = Lines(), text.decode(errors="replace")
            lines.add(line)
            if self._shows:
                print(line, file=sys.stderr, flush=True)
            for each in lines.handed.values():
                self._report(each)

    def _report(self, line: "Handed") -> None:
        if self._port and not self._metrics:
            from torchtally.pod.metrics import Observed  # imports an HTTP server

            self._metrics, self._served = Observed.served(self._port)
        if self._metrics:
            self._metrics.add(line)
        if line.end == "open":
            return
        event = events.Observed(
            of_rank=line.rank,
            loader=line.loader.name,
            phase=line.phase,
            number=line.number + 1,
            samples=line.samples,
            batches=line.batches,
            whole=line.whole,
        )
        events.emit(event, events.Source(pod=self._pod))


def _tell(file: Path, *, prints: bool) -> None:
    try:
        text = file.read_text(errors="replace") if prints else ""
        file.unlink()
        if text:
            from torchtally.observed import judge, report  # which no other pod waits for

            if observation := judge.of(text.splitlines()):
                report.on_stderr(observation)
    except Exception as error:
        log.warning(f"the observation cannot be told: {type(error).__name__}: {error}")
