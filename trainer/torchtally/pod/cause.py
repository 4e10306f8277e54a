"""The search for the failure that came first: the failures of the other pods are its consequences."""

import contextlib
import threading
from dataclasses import dataclass

from torch.distributed import DistError

from torchtally.errors import FINAL, LOST
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.heartbeat import Heartbeat, wait_until_departed
from torchtally.pod.job_store import JobStore
from torchtally.pod.names import Names

_LONGER = 2  # seconds that the whole search takes beyond the wait for a known cause


def find(own: Failure, store: JobStore, heartbeat: Heartbeat, rank: int, names: Names, seconds: float) -> Failure:
    """Return the failure that this pod ends with: `own`, or the one that caused it.

    An unexplained failure counts as the cause if no known one is posted within some `seconds`. The exit code is LOST,
    unless a retry cannot cure the cause: all pods end with the code of such a cause. Ends the heartbeat of this pod.
    """
    if heartbeat.ranks_killed:
        text = f"the ranks of {names.one(rank)} did not notice it and were killed"
        own = Failure(Kind.CONSEQUENCE, LOST, text)
    search = _Search(own, store, heartbeat, rank, names, seconds)
    if not heartbeat.store_lost:
        thread = threading.Thread(target=search.run, daemon=True)
        thread.start()
        thread.join(3 * (seconds + _LONGER))  # a frozen store never answers
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
    seconds: float  # for a known cause to be posted; pod 0 posts that a pod is gone
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
                wait_until_departed(self.store, self.seconds + _LONGER + 1)

    def _in_store(self) -> Failure | None:
        if self.own.kind == Kind.KNOWN:
            return None
        if known := self.store.first(Kind.KNOWN, self.seconds):
            return known[1]
        unexplained = self.store.first(Kind.UNEXPLAINED, _LONGER)
        if known := self.store.first(Kind.KNOWN):
            return known[1]
        if unexplained:
            rank, failure = unexplained
            return None if rank == self.rank else failure
        # All pods only lost a peer. The one that was first to lose it may know which.
        lost = self.store.first(Kind.CONSEQUENCE) if self.own.kind == Kind.CONSEQUENCE else None
        return lost[1] if lost and lost[0] != self.rank else None
