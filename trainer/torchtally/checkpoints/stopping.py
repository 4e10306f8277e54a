"""A signal to stop, of which all ranks learn after the same step."""

import signal
import threading
import time
from types import FrameType

import torch
import torch.distributed as dist

from torchtally import events, exchange
from torchtally.distributed import own_group
from torchtally.errors import Stopped

_SYNCHRONIZE_SECONDS = 1.0


class Stopping:
    """About once a second, all ranks exchange between two steps whether any has received a signal.

    From the beginning on, SIGTERM and SIGINT end the process only so.

    Attributes:
        rank: One that has received a signal, once all know of it.
    """

    def __init__(self) -> None:
        self._number = self.rank = 0  # of the signal that this rank has received
        self._pace = self._left = 1  # steps between two exchanges, and until the next
        self._met = time.monotonic()
        takes = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        self._handlers = {each: signal.signal(each, self._ask) for each in takes}

    def stepped(self) -> None:
        """Take note of a step."""
        self._left -= 1

    @property
    def due(self) -> bool:
        """Whether the ranks exchange now."""
        return self._left <= 0

    def exchange(self, group: dist.ProcessGroup, *wishes: int) -> list[int]:
        """A signal's number that some rank has received, or 0, and the highest of each wish. A call of all ranks."""
        now, leads = time.monotonic(), dist.get_rank() == 0
        # Rank 0's clock sets the pace for all.
        spent = max(now - self._met, 1e-6)
        pace = max(1, min(2 * self._pace, round(self._pace * _SYNCHRONIZE_SECONDS / spent))) if leads else 0
        receiver = dist.get_rank() if self._number else 0
        told = torch.tensor([pace, receiver, self._number, *wishes], dtype=torch.int64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group)
        self._pace, self.rank, *agreed = told.tolist()
        self.go_on()
        return agreed

    def go_on(self) -> None:
        """Count the steps, and the time, from now on."""
        self._left, self._met = self._pace, time.monotonic()

    def close(self) -> None:
        """Handle signals as before, but for those that another has taken over."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._ask:
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._number = number


def stop(number: int, rank: int, saved: bool, source: events.Source, reached: tuple[int, int, int]) -> None:
    """Report the end of this start, and raise Stopped. A call of all ranks; `rank` is one that the signal reached."""
    if dist.get_rank() == 0:
        epoch, position, _ = reached
        events.emit(events.Stopped(signal=number, saved=saved, epoch=epoch, position=position), source)
    raise Stopped(number, saved, rank)


class Asked:
    """For a program that saves its checkpoints itself: the ranks are asked between steps, from the first call on.

    Attributes:
        number: The number of the signal that some rank has received, once all ranks know.
        saved: Whether the program has taken a state on this rank since then.
    """

    def __init__(self) -> None:
        self._stopping: Stopping | None = None
        self.number = self._rank = 0
        self.saved = False

    def ask(self) -> bool:
        """Whether to save and stop now. A call of all ranks after the same step."""
        self._stopping = self._stopping or Stopping()
        self._stopping.stepped()
        if not self.number and self._stopping.due:
            [self.number] = self._stopping.exchange(own_group.of_all())
            self._rank = self._stopping.rank
            self.saved = False
        return self.number > 0

    def end(self, source: events.Source, reached: tuple[int, int, int]) -> None:
        """End this start once all ranks have come so far: rank 0 may be writing. Raises Stopped on all of them."""
        saved = any(exchange.all_gather(self.saved, own_group.of_all()))
        stop(self.number, self._rank, saved, source, reached)

    def close(self) -> None:
        """Handle signals as before."""
        if self._stopping:
            self._stopping.close()
