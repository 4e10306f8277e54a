"""The search for the failure that came first: the failures of the other pods are its consequences."""

import contextlib
import threading
import time
from dataclasses import dataclass

from torch.distributed import DistError

from torchtally.errors import FINAL, LOST
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.heartbeat import Heartbeat, Silence, wait_until_departed
from torchtally.pod.job_store import JobStore
from torchtally.pod.names import Names

# All in seconds.
_SEARCH = 6  # for the whole search
_UNEXPLAINED = 4  # for a known cause to be posted, before an unexplained failure counts as the cause
_SILENCE = 3  # without a heartbeat, in a job that has failed, until a pod counts as gone


def find(own: Failure, store: JobStore, heartbeat: Heartbeat, rank: int, names: Names) -> Failure:
    """Return the failure that this pod ends with: `own`, or the one that caused it.

    Its exit code is LOST, unless a retry cannot cure the cause: all pods end with the code of such a cause. Ends the
    heartbeat of this pod.
    """
    if heartbeat.ranks_killed:
        text = f"the ranks of {names.one(rank)} did not notice it and were killed"
        own = Failure(Kind.CONSEQUENCE, LOST, text)
    search = _Search(own, store, heartbeat, rank, names)
    if not heartbeat.store_lost:
        thread = threading.Thread(target=search.run, daemon=True)
        thread.start()
        thread.join(3 * _SEARCH)  # a frozen store never answers
    cause = search.cause
    if not search.finished and own.kind != Kind.KNOWN:
        cause = heartbeat.first_reported  # before the store was lost
    if cause is not None:
        # A cause with a stack frame has several lines, so its consequence begins a new one.
        between = "\n" if "\n" in cause.text else "; "
        code = cause.code if cause.code in FINAL else LOST
        return Failure(Kind.CONSEQUENCE, code, f"{cause.text}{between}{own.text}")
    # The failure that was posted first cannot come of the store's loss.
    if own.kind == Kind.KNOWN or (own.kind == Kind.UNEXPLAINED and (search.number == 1 or search.finished)):
        return own
    gone = "another pod" if search.finished else f"{names.one(0)}, which holds the job's store,"
    return Failure(Kind.CONSEQUENCE, LOST, f"{gone} went away; {own.text}")


@dataclass
class _Search:
    own: Failure
    store: JobStore
    heartbeat: Heartbeat
    rank: int
    names: Names
    number: int = 0  # of this pod's failure among all, from 1
    cause: Failure | None = None  # where it is another pod's failure
    finished: bool = False

    def run(self) -> None:
        with contextlib.suppress(DistError):
            self.number = self.store.post(self.rank, self.own)
            self.cause = self._in_store()
            self.finished = True
            self.heartbeat.stop(self.store)
            if self.rank == 0:
                wait_until_departed(self.store, _SEARCH + 1)

    def _in_store(self) -> Failure | None:
        silence = Silence()
        began = time.monotonic()
        while self.own.kind != Kind.KNOWN and time.monotonic() < began + _SEARCH:
            posted = [(rank, each) for rank, each in self.store.failures() if each.kind != Kind.CONSEQUENCE]
            if known := [each for _, each in posted if each.kind == Kind.KNOWN]:
                return known[0]
            if silent := silence.of(self.store.heartbeats(), _SILENCE):
                return Failure(Kind.KNOWN, LOST, f"{self.names.several(silent)} went away without a message")
            if posted and time.monotonic() > began + _UNEXPLAINED:
                rank, unexplained = posted[0]
                return None if rank == self.rank else unexplained
            time.sleep(0.1)
        # All pods only lost a peer. The one that was first to lose it may know which.
        lost = [each for rank, each in self.store.failures() if rank != self.rank]
        return lost[0] if lost and self.own.kind == Kind.CONSEQUENCE else None
