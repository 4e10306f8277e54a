"""The heartbeat of a pod: it shows the other pods that this one lives, and learns of their failures.

A pod that fails posts its failure in the job's store. One that is lost or frozen posts nothing: its heartbeat stops.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection

from torch.distributed import DistError

from torchtally.environment import Patience
from torchtally.errors import LOST
from torchtally.log import log
from torchtally.pod import signals
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.job_store import DEPARTED, JobStore
from torchtally.pod.names import Names

# All in seconds.
_INTERVAL = 1  # between two heartbeats
_GONE = 3  # without a heartbeat, in a job that has failed, until a pod counts as gone
_LOOK = 0.2  # between two of pod 0's looks for pods that are gone


class Heartbeat:
    """This pod's heartbeat, and a watch over those of the others. Both are threads, from `start` to `stop`."""

    def __init__(
        self,
        store: JobStore,
        rank: int,
        names: Names,
        open_exit_barrier: Callable[[], None],
        before_kill: Callable[[], None],
        patience: Patience,
    ) -> None:
        self.first_reported: Failure | None = None  # the first known failure, if it is another pod's
        self.store_lost = False  # or frozen
        self.ranks_killed = False  # because they did not notice that a peer was gone
        self._store, self._rank, self._names, self._open_exit_barrier = store, rank, names, open_exit_barrier
        self._before_kill, self._patience = before_kill, patience
        self._answered, self._job_failed, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        self._beating.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self, store: JobStore) -> None:
        """End the heartbeat so that no pod takes this one for lost. `store` is another connection."""
        self._stopped.set()
        self._beating.join(2 * _INTERVAL)
        store.depart(self._rank)

    def _beat(self) -> None:
        """Beat, and read what the others post. Pod 0 posts the loss of a pod that is silent."""
        silence = Silence()
        known: tuple[int, Failure] | None = None
        with contextlib.suppress(DistError):
            while not self._stopped.is_set():
                self._store.beat(self._rank)
                if failed := self._store.failures() > 0:
                    self._job_failed.set()
                    if known is None and (known := self._store.first(Kind.KNOWN)):
                        self._report(*known)
                if self._rank == 0 and known is None:
                    self._post_silent(silence, failed)
                self._answered.set()
                self._stopped.wait(_LOOK if failed and self._rank == 0 and known is None else _INTERVAL)
            return
        self.store_lost = True
        self._job_failed.set()

    def _report(self, rank: int, failure: Failure) -> None:
        if rank != self._rank:
            self.first_reported = failure
            log.warning(failure.text)

    def _post_silent(self, silence: "Silence", failed: bool) -> None:
        """As pod 0, post the loss of the pods that send no heartbeats."""
        if not (silent := silence.of(self._store.heartbeats(), _GONE if failed else self._patience.silence)):
            return
        names = self._names.several(silent)
        lost = f"no heartbeat of {names} for {self._patience.silence:g} s: lost or frozen"
        text = f"{names} went away without a message" if failed else lost
        self._store.post(silent[0], Failure(Kind.KNOWN, LOST, text))

    def _watch(self) -> None:
        """Kill the ranks of this pod if another pod has failed or gone and they do not notice it."""
        # A frozen store never answers. Steps are counted, not time: the clock runs on while this pod is frozen itself.
        steps = 0
        while steps < self._patience.silence and not self._job_failed.wait(1):
            steps = 0 if self._answered.is_set() else steps + 1
            self._answered.clear()
        if steps >= self._patience.silence:
            self.store_lost = True
        # A pod that was asked to stop has its own time for it.
        while not self._stopped.wait(self._patience.grace) and not signals.begun():
            self._before_kill()
            self.ranks_killed |= any(signals.ranks())  # before they end: the main thread reads it then
            if not signals.kill_ranks() and not self.store_lost:
                # Its ranks have succeeded: the agent would wait 5 minutes for the other pods.
                self._open_exit_barrier()


class Silence:
    """How long each pod has had no new heartbeat, by this pod's clock: clocks of different pods are never compared."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[bytes, float]] = {}

    def of(self, heartbeats: list[bytes], seconds: float) -> list[int]:
        """Return the ranks of the pods whose heartbeat has been the same for `seconds`."""
        now = time.monotonic()
        for rank, beat in enumerate(heartbeats):
            if rank not in self._last or self._last[rank][0] != beat:
                self._last[rank] = (beat, now)
        return [rank for rank, (beat, since) in self._last.items() if beat != DEPARTED and now - since >= seconds]


def wait_until_departed(store: JobStore, timeout: float, but: Collection[int] = ()) -> None:
    """Wait until all pods `but` these have departed, for at most `timeout` seconds: pod 0 takes the store with it."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if all(beat == DEPARTED for rank, beat in enumerate(store.heartbeats()) if rank not in but):
            return
        time.sleep(0.1)
