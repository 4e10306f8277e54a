"""What the events in logs tell the verifier: which runs and attempts there are, and which logs begin in the middle."""

import re
from dataclasses import dataclass, field

from torchtally import events
from torchtally.proof.line import Attempt

_EVENT = re.compile(
    re.escape(events.PREFIX) + r'\{"v":\d+,"event":"(\w+)","time":(\d{1,12}(?:\.\d{1,9})?),"pod":"([^"]*)"'
    r'(?:,"rank":(?:null|\d+))?[^{}]*?"run":(?:null|"([^"]+)"(?:,"attempt":(\d{1,9}),"began":(\d{1,15}))?)'
)
_BEGINS = ("begun", "resumed")
# Rank 0 reports these behind one of those.
_LATER = ("step", "saved", "save_failed", "proved", "epoch", "stopped", "write_failed")
_SHOWN = 8


def _failure(text: str) -> tuple[bool, str] | None:
    """Whether a failure is the consequence of another pod's, and what it is."""
    record = events.read(text)
    if record is None or not isinstance(record.event, events.Ended) or not record.event.code:
        return None
    cause = f": {record.event.cause}" if record.event.cause else ""
    sentence = f"{record.source.pod} ended with exit code {record.event.code}{cause}"
    return record.event.kind == "consequence", sentence


@dataclass
class Heard:
    """The events of the logs that are read, by the text of their lines."""

    started: dict[str, tuple[str, int]] = field(default_factory=dict)  # of runs: where and when they begin or resume
    attempts: dict[str, set[Attempt]] = field(default_factory=dict)  # of runs
    _causes: list[tuple[float, str]] = field(default_factory=list)  # failures by themselves, and their time
    _consequence: str | None = None  # the first failure that is one of another pod's
    _started: dict[str, float] = field(default_factory=dict)  # by pod: when it has started last
    _ended: dict[str, float] = field(default_factory=dict)
    _middle: list[tuple[str, str]] = field(default_factory=list)  # runs and logs whose first event is a later one
    _first: dict[str, tuple[str, str]] = field(default_factory=dict)  # of the pods in the log: kind and run

    def add(self, text: str, where: str) -> None:
        """Add the events in a line of a log."""
        for kind, time, pod, run, attempt, began in _EVENT.findall(text) if events.PREFIX in text else ():
            if kind == "ended" and (failure := _failure(text)):
                is_consequence, sentence = failure
                if is_consequence:
                    self._consequence = self._consequence or sentence
                else:
                    self._causes.append((float(time), sentence))
            if kind in ("started", "ended"):
                moments = self._started if kind == "started" else self._ended
                moments[pod] = max(moments.get(pod, 0.0), float(time))
            self._first.setdefault(pod, (kind, run))
            if run:
                self.attempts.setdefault(run, set()).add((int(attempt or 0), int(began or 0)))
            if run and kind in _BEGINS:
                self.started.setdefault(run, (where, round(float(time) * 1000)))

    def end_of(self, source: str) -> None:
        """A log is at its end: what was first in it tells whether its beginning is there."""
        for pod, (kind, run) in self._first.items():
            if kind in _LATER:
                name = f"pod {pod}"
                self._middle.append((run, name if source == name else f"{name} in {source}"))
        self._first = {}

    @property
    def failed(self) -> str | None:
        """What the first pod that failed ended with, which is the cause of the others' end where one knows it."""
        return self._causes[0][1] if self._causes else self._consequence

    @property
    def failed_for_good(self) -> list[str]:
        """How pods ended that failed by themselves, and no pod has started since."""
        newest = max(self._started.values(), default=0.0)
        return [sentence for time, sentence in self._causes if time >= newest]

    @property
    def without_end(self) -> set[str]:
        """The pods that have started, and whose end no event tells."""
        return {pod for pod, time in self._started.items() if self._ended.get(pod, 0.0) < time}

    @property
    def notes(self) -> list[str]:
        """A sentence on logs that begin in the middle."""
        rotated = [log for run, log in self._middle if run not in self.started]  # no other log has the beginning
        if not rotated:
            return []
        shown = ", ".join(rotated[:_SHOWN]) + ", ..." * (len(rotated) > _SHOWN)
        what = "the log begins" if len(rotated) == 1 else "logs begin"
        gone = f"rotated: {what} in the middle, and the earlier lines are gone ({shown})"
        return [f"{gone}; a proof.json of the run, given beside the logs, takes their place"]
