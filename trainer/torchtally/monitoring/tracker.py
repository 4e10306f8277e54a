"""The recording of a run in a tracker by a thread of rank 0, so that training never waits for a server."""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor, nn

from torchtally.errors import Stopped
from torchtally.log import log
from torchtally.monitoring.callback import Callback

_MAX_PENDING = 100_000  # values; beyond it the oldest are dropped
_BATCH_SIZE = 1000  # values in a call: MLflow's maximum

Status = Literal["FINISHED", "FAILED", "KILLED"]
Trained = Callable[[], tuple[nn.Module, Tensor]]  # the trained model on the CPU, and inputs: two rows or more


class Value(NamedTuple):
    """A number of the run."""

    name: str
    value: float
    at: int  # milliseconds since 1970
    step: int


class Proof(NamedTuple):
    """What a run that has ended proves."""

    verdict: str
    file: str
    text: str


class Tracker(Protocol):
    """A run in a tracker. A call that raises is made again later, after another `connect`."""

    name: str

    def connect(self) -> None:
        """Find the run that an earlier attempt has begun, or begin it."""

    def log(self, values: list[Value]) -> None: ...

    def finish(self, status: Status, proof: Proof | None) -> None:
        """Record the end of the run and, with FINISHED, its proof."""


@contextmanager
def recorder(tracker: Tracker, made: Path | None) -> Iterator["Recorder"]:
    """Record the training in the `with` block, and at its end the proof."""
    recorder = Recorder(tracker, made)
    try:
        yield recorder
    except Stopped:
        recorder.end("KILLED")
        raise
    except BaseException:
        recorder.end("FAILED")
        raise
    recorder.end("FINISHED")


class Recorder(Callback):
    """Records a run. All attempts of a run are one run of the tracker.

    Args:
        tracker: Is called by one thread.
        made: The proof that the program writes itself, if it does. Otherwise, the lines of the run are the proof.

    Attributes:
        patience: Seconds to wait for the record of a run that has ended. A stopped pod has only its grace period.
        pause: Seconds after a failure, beside the retries of the tracker itself.
    """

    patience: ClassVar[dict[Status, float]] = {"FINISHED": 180.0, "FAILED": 10.0, "KILLED": 3.0}
    pause = 10.0

    def __init__(self, tracker: Tracker, made: Path | None = None) -> None:
        self._tracker, self._made = tracker, made
        self._connected = False
        self._values: deque[Value] = deque(maxlen=_MAX_PENDING)
        self._batch: list[Value] = []  # not accepted yet
        self._lines: list[Mapping[str, Any]] = []  # of all ranks together
        self._holds = True
        self._failing = self._left = False
        self._status: Status | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True, name=f"torchtally-{tracker.name}")
        self._thread.start()

    def metrics(self, step: int, **values: float) -> None:
        at = time.time_ns() // 1_000_000
        self._values.extend(Value(name, value, at, step) for name, value in values.items())

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._lines.append(line)
        self._holds &= holds

    def complete(self, line: Mapping[str, Any]) -> None:
        self._lines.append(line)

    def end(self, status: Status) -> None:
        """Record the end of the run and, with FINISHED, its model and proof. Waits no longer than `patience`."""
        self._status = status
        self._ended.set()
        self._thread.join(self.patience[status])
        self._left = True
        if self._thread.is_alive() and status == "FINISHED":
            seconds = f"{self.patience[status]:.0f} s"
            log.warning(f"{self._tracker.name} did not accept the complete record of the run within {seconds}")

    def _record(self) -> None:
        """Send what is pending, each second and at the end. The thread's whole work."""
        while not self._left:
            over = self._ended.wait(1.0)
            try:
                self._send()
                if over:
                    assert self._status
                    return self._tracker.finish(self._status, self._proof() if self._status == "FINISHED" else None)
            except Exception as error:  # no error of the tracker's may end the recording
                self._connected = False
                self._warn_once(error)
                if over:
                    time.sleep(1.0)
                else:
                    self._ended.wait(self.pause)

    def _send(self) -> None:
        """Raises the tracker's exceptions."""
        if not self._connected:
            self._tracker.connect()
            self._connected = True
        while self._batch or self._values:
            if not self._batch:
                self._batch = [self._values.popleft() for _ in range(min(_BATCH_SIZE, len(self._values)))]
            self._tracker.log(self._batch)
            self._batch = []
        if self._failing:
            self._failing = False
            log.info(f"{self._tracker.name} answers again and has all values of the run so far")

    def _proof(self) -> Proof:
        if self._made:
            file, text = self._made.name, self._made.read_text()
            holds = json.loads(text)["predicate"]["holds"]
        else:
            file, holds = "lines.json", self._holds
            text = json.dumps({"holds": holds, "lines": self._lines}, indent=2)
        return Proof("every sample as the contract says" if holds else "does not hold", file, text)

    def _warn_once(self, error: Exception) -> None:
        """Log the first of several failures in a row, but not while Python may exit, which that can abort."""
        if not self._failing and not self._left:
            self._failing = True
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = re.sub(r"//[^/@\s]+@", "//", lines[0])[:200]  # without credentials of a URI
            name = self._tracker.name
            log.warning(f"{name} does not accept the record of this run, and requests are retried: {reason}")
