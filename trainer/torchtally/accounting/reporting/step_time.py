"""How long the steps of this rank take, and in what: it waits for data, computes, or waits for other ranks."""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torchtally.distributed import waiting
from torchtally.distributed.waiting import WAITED

_MEASURE_SECONDS = 0.025  # between two steps whose backward passes are measured: all of them, if they are longer
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds in a number of steps."""

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

    A step costs two or three looks at the clock.

    Attributes:
        number: Of the steps so far.
    """

    def __init__(self, world: int) -> None:
        if world > 1:
            waiting.watch()
        self._alone = world == 1
        self.number = 0
        self._whole = self._data = self._communication = 0.0
        self._fetching = 0.0  # the data wait of the step in progress
        self._pass_wait = 0.0  # of the last step that was measured; those between two such steps count as it
        self._measure_at = 0.0
        self._paused = 0.0, 0.0, 0.0
        self.begin()

    @property
    def total(self) -> Times:
        """All steps so far."""
        compute = max(0.0, self._whole - self._data - self._communication)
        return Times(steps=self.number, data_wait=self._data, compute=compute, communication=self._communication)

    def begin(self) -> None:
        """A step begins."""
        self._calls, self._passes, self._fetching = WAITED.calls, WAITED.passes, 0.0
        self._began = time.perf_counter()

    def fetched(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches, and time how long the loop waits for each."""
        source = iter(batches)
        while True:
            began = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self._fetching += time.perf_counter() - began
            yield batch

    def pause(self) -> None:
        """What follows, up to `go_on`, is no part of the step."""
        self._paused = time.perf_counter(), WAITED.calls, WAITED.passes

    def go_on(self) -> None:
        """The step continues."""
        at, calls, passes = self._paused
        self._began += time.perf_counter() - at
        self._calls += WAITED.calls - calls
        self._passes += WAITED.passes - passes

    def stepped(self) -> None:
        """The step ends."""
        now = time.perf_counter()
        if WAITED.measures:
            self._pass_wait, self._measure_at = WAITED.passes - self._passes, self._began + _MEASURE_SECONDS
        WAITED.measures, WAITED.thread = not self._alone and now >= self._measure_at, threading.get_ident()
        self.number += 1
        self._whole += now - self._began
        self._data += self._fetching
        self._communication += WAITED.calls - self._calls + self._pass_wait
