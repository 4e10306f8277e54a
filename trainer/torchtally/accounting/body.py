"""The body of an epoch that the program is in: a state that is made in its batch loop goes on with the rest of it."""

from collections.abc import Iterator
from contextlib import contextmanager


class Body:
    """What the program makes of an epoch: its batch loops, and what comes after them.

    Attributes:
        loaded: Epoch of a loaded state whose rest has still to be made.
    """

    def __init__(self) -> None:
        self.loaded: int | None = None
        self._epoch: int | None = None  # that `Account.epochs` has yielded
        self._loops: dict[object, int] = {}  # those that the program is in, and the epochs of their phases

    @property
    def unfinished(self) -> int | None:
        """The epoch whose rest has still to be made if the program goes on here: it is in one of its batch loops."""
        if not self._loops:
            return self.loaded
        return max(self._loops.values()) if self._epoch is None else self._epoch

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """The program makes this epoch."""
        self._epoch = number
        try:
            yield
            self.loaded = None  # that one comes first
        finally:
            self._epoch = None
            self._loops.clear()  # of a loop that holds on to its iterator

    @contextmanager
    def loop(self, epoch: int) -> Iterator[None]:
        """The program is in a batch loop of a phase that trains, in this epoch of the phase."""
        loop = object()
        self.loaded, self._loops[loop] = None, epoch
        try:
            yield
        finally:
            self._loops.pop(loop, None)
