"""How long the steps of this rank take, and in what: it waits for data, computes, or waits for other ranks."""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torchtally.distributed.waiting import WAITED

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

    def __init__(self) -> None:
        WAITED.thread = threading.get_ident()
        self.number = 0
        self._whole = self._data = self._communication = 0.0
        self._fetching = 0.0  # the data wait of the step in progress
        self._paused = 0.0, 0.0
        self.begin()

    @property
    def total(self) -> Times:
        """All steps so far."""
        compute = max(0.0, self._whole - self._data - self._communication)
        return Times(steps=self.number, data_wait=self._data, compute=compute, communication=self._communication)

    def begin(self) -> None:
        """A step begins."""
        self._waited, self._fetching = WAITED.seconds, 0.0
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
        self._paused = time.perf_counter(), WAITED.seconds

    def go_on(self) -> None:
        """The step continues."""
        at, waited = self._paused
        self._began += time.perf_counter() - at
        self._waited += WAITED.seconds - waited

    def stepped(self, ended: float) -> None:
        """The step has ended at this time."""
        WAITED.thread = threading.get_ident()
        self.number += 1
        self._whole += ended - self._began
        self._data += self._fetching
        self._communication += WAITED.seconds - self._waited
