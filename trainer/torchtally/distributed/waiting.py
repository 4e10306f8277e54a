"""How long this process waits for other ranks where gradients meet, by the clock of its training thread.

DDP waits at the end of a backward pass for the gradients that are not summed yet: what follows the last gradient of
this rank there is a wait.
"""

import threading
import time
from collections.abc import Callable

from torch import Tensor

from torchtally import compat


class Waited:
    """Seconds, since the start of this process.

    Attributes:
        seconds: Of waits.
        thread: The thread that trains. Those of checkpoints wait for other ranks, too.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.thread = 0

    @property
    def unwaited(self) -> float:
        """A clock that stands still while a wait is added."""
        return time.perf_counter() - self.seconds

    def add(self, seconds: float) -> None:
        """Add the time of a collective call."""
        if threading.get_ident() == self.thread:
            self.seconds += seconds


WAITED = Waited()


def timed(loss: Tensor) -> Tensor:
    """Add what the backward pass of a loss waits at its end. Returns the loss."""
    compat.hook(loss, lambda _: end_pass(lambda: None))
    return loss


def end_pass(over: Callable[[], None]) -> None:
    """In a backward pass: add what it waits at its end, and call `over` then.

    The engine calls what is queued in order, and FSDP and DDP queue their waits with the last gradient: between these.
    """

    def computed() -> None:
        began = WAITED.unwaited

        def waited() -> None:
            WAITED.seconds += WAITED.unwaited - began
            over()

        compat.after_backward(waited)

    compat.after_backward(computed)
