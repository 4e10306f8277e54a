"""Looks at a job again and again: until it has ended, and while the API server does not answer."""

import math
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from torchtally.cluster.job_kinds import ClusterError, ClusterJob, NoJob, Unreachable

_INTERVAL = 5.0  # seconds between two looks
_AGAIN = 600.0  # seconds after which the same state is told again
_CREATED_WITHIN = 60.0  # seconds: what applies both may create the job after the verifier
_READ_WITHIN = 300.0  # seconds for the logs: a node that is lost never answers

Result = TypeVar("Result")


class _Progress:
    """Lines on standard error: of each new state, and now and then of one that stays."""

    def __init__(self) -> None:
        self._kind, self._at = "", 0.0

    def tell(self, kind: str, sentence: str) -> None:
        now = time.monotonic()
        if kind != self._kind or now - self._at >= _AGAIN:
            print(f"torchtally verify: {sentence}", file=sys.stderr, flush=True)
            self._kind, self._at = kind, now


class Looking:
    """Finds a job, and then the same one."""

    def __init__(self, find: Callable[[], ClusterJob]) -> None:
        self._find = find
        self._seen: ClusterJob | None = None

    def __call__(self) -> ClusterJob:
        """The job now. Raises NoJob before it was seen, and ClusterError once it is deleted."""
        try:
            job = self._find()
        except NoJob as error:
            if self._seen:
                raise ClusterError(self._seen.deletion) from error
            raise
        if self._seen and job.uid != self._seen.uid:
            raise ClusterError(f"{self._seen.deletion}, and another one of that name exists")
        self._seen = job
        return job


def until_end(find: Callable[[], ClusterJob], seconds: float = math.inf) -> ClusterJob:
    """The job once it has ended, or after some seconds. Raises ClusterError if it does not exist, or no longer."""
    progress, began, look = _Progress(), time.monotonic(), Looking(find)
    while True:
        try:
            job = look()
            if job.ended or time.monotonic() - began >= seconds:
                return job
            progress.tell(job.progress, f"waiting: {job.sentence}")
        except NoJob as error:
            if time.monotonic() - began >= min(seconds, _CREATED_WITHIN):
                raise
            progress.tell("none", f"waiting for the job: {error.args[0]}")
        except Unreachable as error:
            progress.tell("unreachable", f"trying again: {error.args[0]}")
        time.sleep(_INTERVAL)


def until_read(read: Callable[[], Result]) -> Result:
    """What `read` returns, tried again while the API server is away."""
    progress, began = _Progress(), time.monotonic()
    while True:
        try:
            return read()
        except Unreachable as error:
            if time.monotonic() - began >= _READ_WITHIN:
                raise
            progress.tell("unreachable", f"trying again: {error.args[0]}")
        time.sleep(_INTERVAL)
