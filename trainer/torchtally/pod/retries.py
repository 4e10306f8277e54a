"""Retries of a job whose controller does not bound them: a pod counts its own starts that end without progress.

PyTorchJob's ExitCode policy replaces a pod that ends with a code from 128 on, as often as it takes. With
TORCHTALLY_RETRIES, a pod gives up after that many retries, and a failure of a program is one to retry. Progress is a
resume that is further on than the resumes before it. A start that ends by SIGTERM does not count.
"""

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torchtally import atomic_file, events
from torchtally.environment import Places, pod_name
from torchtally.environment import retries as allowed
from torchtally.errors import FINAL, RETRIED, SIGNALLED, Exhausted
from torchtally.pod.failure import Failure

_Progress = dict[str, list[int]]  # epoch and position of the furthest resume of each run
_PROGRESS = ".progress.json"
_KILLED = "the pod was killed, for example because it was out of memory"


@dataclass(frozen=True)
class _Record:
    failures: int = 0  # starts without progress that did not end in an orderly way
    last: str = ""  # how the last of them ended
    progress: _Progress = field(default_factory=dict)  # at the first of them


class Retries:
    """The retries of one pod, counted in its output folder, which has to outlive the pod."""

    def __init__(self, env: Mapping[str, str], counts: bool) -> None:
        """A pod that does not count leaves the end to another. Raises Refused."""
        self._allowed = allowed(env)
        self._counts = counts and self._allowed is not None
        self._folder, self._pod = Places.from_env(env).output, pod_name(env)
        self._record = _Record()
        self.kept = True  # whether the next start finds the count, which a volume that fails does not promise

    def begin(self) -> None:
        """Count this start. Raises Exhausted, after which the next start counts from 0."""
        if not self._counts or self._allowed is None:
            return
        progress = _progress(self._folder)
        record = self._read()
        if record.progress != progress:
            record = _Record(progress=progress)
        if record.failures > self._allowed:
            self._forget(self._name)
            count = record.failures
            often = "once without progress" if count == 1 else f"{count} times without progress"
            raise Exhausted(
                f"{self._pod} has started {often}, and TORCHTALLY_RETRIES is {self._allowed}; the last start ended "
                f"with: {record.last}"
            )
        self._record = record
        self._write(replace(record, failures=record.failures + 1, last=_KILLED))

    def end(self, failure: Failure | None) -> Failure | None:
        """Take note of how this start ended. Returns the failure with the exit code that its controller is to see."""
        if self._allowed is None:
            return failure
        if self._counts:
            if failure is None:
                self._forget(_PROGRESS)
            if failure is None or failure.code in FINAL:
                self._forget(self._name)
            elif failure.code == SIGNALLED + signal.SIGTERM:
                self._write(self._record)
            else:
                self._write(replace(self._record, failures=self._record.failures + 1, last=failure.text))
        if failure and failure.code < SIGNALLED and failure.code not in FINAL:
            return replace(failure, code=RETRIED)
        return failure

    def _read(self) -> _Record:
        try:
            found = _Record(**json.loads((self._folder / self._name).read_bytes()))
        except (OSError, ValueError, TypeError):
            return _Record()
        return found if type(found.failures) is int else _Record()

    def _write(self, record: _Record) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._folder / self._name, json.dumps(asdict(record)).encode())
        except OSError:  # of a full disk, which the training survives
            self.kept = False

    def _forget(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    @property
    def _name(self) -> str:
        return f".retries-{self._pod}.json"


def resumed(event: events.Resumed, source: events.Source, env: Mapping[str, str] = os.environ) -> None:
    """Take note of a resume, on one rank: it is progress if it is further on than all before it."""
    if allowed(env) is None:
        return
    folder, run, reached = Places.from_env(env).output, source.run or "", [event.epoch, event.position]
    progress = _progress(folder)
    if run not in progress or reached > progress[run]:
        with contextlib.suppress(OSError):
            atomic_file.replace(folder / _PROGRESS, json.dumps({**progress, run: reached}).encode())


def _progress(folder: Path) -> _Progress:
    try:
        found = json.loads((folder / _PROGRESS).read_bytes())
        return {str(run): [int(epoch), int(position)] for run, (epoch, position) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
