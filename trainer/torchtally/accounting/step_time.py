"""How long the steps of this rank take, and in what: it waits for data, computes, or waits for other ranks."""

import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torchtally.distributed import waiting
from torchtally.distributed.waiting import WAITED

_MEASURE_SECONDS = 0.025  # between two steps whose backward passes are measured: all of them, if they are longer
_SHORT = 0.001  # seconds: of steps that are shorter as a rule, one in _APART is timed, on average
_APART = 8
_RULE = 16  # timed steps, over which the rule is an exponential average
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds in a number of timed steps."""

    steps: int = 0
    data_wait: float = 0.0
    compute: float = 0.0  # what is neither of the others
    communication: float = 0.0  # waits for other ranks

    def since(self, before: "Times") -> "Times":
        """What came after `before`."""
        return Times(
            steps=self.steps - before.steps,
            data_wait=self.data_wait - before.data_wait,
            compute=max(0.0, self.compute - before.compute),
            communication=self.communication - before.communication,
        )


class StepTime:
    """Times the steps of a loop. A step reaches from `begin` to `stepped`, less what is between `pause` and `go_on`.

    A timed step costs some microseconds. Of short steps, few are timed. They are apart by chance, so that no rhythm of
    the loop, such as gradient accumulation, falls in with theirs.
    """

    def __init__(self, world: int) -> None:
        if world > 1:
            waiting.watch()
        self._alone = world == 1
        self._apart = random.Random(0)
        self._untimed = 0  # steps until the next one that is timed
        self._rule = 0.0  # seconds of a step
        self._measure_next = False
        self._steps = 0
        self._whole = self._data = self._communication = 0.0
        self._fetching = 0.0  # the data wait of the step in progress
        self._pass_wait = 0.0  # of the last step that was measured; those between two such steps count as it
        self._measure_at = 0.0
        self._paused = 0.0, 0.0, 0.0
        self.begin()

    @property
    def total(self) -> Times:
        """All timed steps so far."""
        compute = max(0.0, self._whole - self._data - self._communication)
        return Times(steps=self._steps, data_wait=self._data, compute=compute, communication=self._communication)

    def begin(self) -> None:
        """A step begins."""
        if self._untimed:
            return
        self._calls, self._passes, self._fetching = WAITED.calls, WAITED.passes, 0.0
        self._began = time.perf_counter()

    def fetched(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches, and time how long the loop waits for each."""
        source = iter(batches)
        while True:
            began = 0.0 if self._untimed else time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            if began:
                self._fetching += time.perf_counter() - began
            yield batch

    def pause(self) -> None:
        """What follows, up to `go_on`, is no part of the step."""
        self._paused = time.perf_counter(), WAITED.calls, WAITED.passes

    def go_on(self) -> None:
        """The step goes on."""
        at, calls, passes = self._paused
        self._began += time.perf_counter() - at
        self._calls += WAITED.calls - calls
        self._passes += WAITED.passes - passes

    def stepped(self) -> None:
        """The step ends."""
        if self._untimed:
            self._untimed -= 1
            WAITED.measures = self._measure_next and not self._untimed
            return
        now = time.perf_counter()
        took = now - self._began
        if WAITED.measures:
            self._pass_wait, self._measure_at = WAITED.passes - self._passes, self._began + _MEASURE_SECONDS
        self._rule += (took - self._rule) / _RULE if self._steps else took
        if self._rule < _SHORT:
            self._untimed = self._apart.randrange(2 * _APART - 1)
        self._measure_next = not self._alone and now >= self._measure_at
        WAITED.measures, WAITED.thread = self._measure_next and not self._untimed, threading.get_ident()
        self._steps += 1
        self._whole += took
        self._data += self._fetching
        self._communication += WAITED.calls - self._calls + self._pass_wait
