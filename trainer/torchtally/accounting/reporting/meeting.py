"""The ranks meet now and then: each leaves its times in the job's store, and rank 0 names a pod that is slower.

Once, each leaves what ranks compare at the end of an epoch, and rank 0 warns of those that train apart.

Nobody waits for anybody: rank 0 takes what is there. So a meeting can neither hang a job nor change what it computes.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally import compat, events
from torchtally.accounting.guards.apart import Apart
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.reporting import stragglers
from torchtally.accounting.reporting.step_time import StepTime, Times
from torchtally.accounting.reporting.stragglers import RankTimes
from torchtally.environment import progress_seconds
from torchtally.events import Straggler
from torchtally.log import log
from torchtally.record.sentences import of_straggler

_FIRST_SECONDS = 1.0  # to the first one, in which nothing is judged: it holds the first steps
_LEAST_SECONDS = 1.0  # between two
_COMPARED = 8  # steps before ranks leave their weights for a warning
_TRIPS = 3  # messages, of which the fastest counts
_NONE = Straggler(slow=None, slow_rank=None, loses_in=None, seconds=None, others=None)


class Meeting:
    """The meetings of one start of a run. A step costs one look at the clock.

    Attributes:
        steps: Times the steps of this rank.

    Raises:
        Refused: The environment sets no valid time between two meetings.
    """

    def __init__(self, run: Run, steps: StepTime, apart: Apart | None = None) -> None:
        self.steps, self._run, self._apart = steps, run, apart
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._seconds = max(progress_seconds(os.environ), _LEAST_SECONDS)
        self._due = time.monotonic() + min(self._seconds, _FIRST_SECONDS)
        place = f"torchtally/times/{run.run}/{run.attempt}/{run.began}"
        self._store: Store | None = PrefixStore(place, compat.default_store()) if self._world > 1 else None
        self._before: Times | None = None
        self._number = 0
        self._trips: deque[float] = deque([0.0], maxlen=_TRIPS)
        self._read: dict[int, int] = {}  # by rank: the number of what was read last
        self._found: tuple[str | None, str | None] | None = None  # pod, and in what it loses time, by the last meeting
        self._told: tuple[str | None, str | None] | None = None
        self._epoch = ""  # of which the ranks compare their weights, once

    def stepped(self, phase: str, completed: Callable[[str], int]) -> None:
        """Leave hashes of this rank's weights, after as many steps as any other rank has made; meet if it is time."""
        if self._apart and self.steps.number == _COMPARED:
            self._epoch, text = f"{phase} epoch {completed(phase) + 1}", json.dumps(self._apart.tells(phase))
            self._in_store(lambda store: store.set(f"weights {self._rank}", text))
        if self.due:
            self.hold()

    @property
    def due(self) -> bool:
        """Whether it is time for one."""
        return time.monotonic() >= self._due

    def hold(self) -> None:
        """Leave this rank's times; on rank 0, read those of all."""
        self._due = time.monotonic() + self._seconds
        total, before = self.steps.total, self._before
        self._before = total
        if before is None:
            return
        self._in_store(lambda store: self._leave(store, total.since(before)))
        if self._rank == 0:
            self._in_store(self._judge)
            self._in_store(self._compare)

    def _in_store(self, act: Callable[[Store], None]) -> None:
        if self._store is None:
            return
        try:
            act(self._store)
        except (DistError, RuntimeError):  # the store has ended, or is of a kind that lacks a call
            self._store = None

    def _leave(self, store: Store, times: Times) -> None:
        self._number += 1
        steps = max(times.steps, 1)
        own = RankTimes(
            rank=self._rank,
            pod=self._run.pod,
            data_wait=times.data_wait / steps,
            compute=times.compute / steps,
            communication=times.communication / steps,
            trip=min(self._trips),
        )
        key = str(self._rank)
        began = time.perf_counter()
        store.set(key, json.dumps([self._number, asdict(own)]))
        store.check([key])
        if self._number == 1:
            self._trips.clear()
        self._trips.append(time.perf_counter() - began)

    def _judge(self, store: Store) -> None:
        keys = [str(rank) for rank in range(self._world)]
        if not store.check(keys):
            return
        found: list[RankTimes] = []
        texts: list[Any] = store.multi_get(keys)
        for rank, text in enumerate(texts):
            number, values = json.loads(text)
            if number > self._read.get(rank, 0):
                found.append(RankTimes(**values))
            self._read[rank] = number
        if found and found[0].rank == 0:
            self._tell(stragglers.find(found))

    def _compare(self, store: Store) -> None:
        """Warn once of ranks that train apart: a proof shows it only at the end of an epoch."""
        keys = [f"weights {rank}" for rank in range(self._world)]
        if self._apart is None or not store.check(keys):
            return
        texts: list[Any] = store.multi_get(keys)
        if sentence := self._apart.judges(self._epoch, dict(enumerate(map(json.loads, texts)))):
            log.warning(sentence)
        self._apart = None

    def _tell(self, slow: Straggler | None) -> None:
        """Report what two meetings have found, once, until it changes."""
        found = (slow.slow, slow.loses_in) if slow else None
        confirmed, self._found = found == self._found, found
        if not confirmed or found == self._told:
            return
        self._told = found
        if slow:
            log.warning(f"{slow.slow} (rank {slow.slow_rank}) is slower than the other pods: {of_straggler(slow)}")
        else:
            log.info("no pod is slower than the other pods any more")
        events.emit(slow or _NONE, self._run.source)
