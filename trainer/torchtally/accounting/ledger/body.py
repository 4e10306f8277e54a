"""The body of an epoch: a state that is saved in its batch loop resumes with the rest of the body."""

from collections.abc import Iterator
from contextlib import contextmanager


class Body:
    """Tracks the epoch and the batch loops that the program is in.

    Attributes:
        loaded: Epoch of a loaded state, if the rest of its body still has to run.
        rest: The first epoch after a resume, of whose body a part may be made.
        begun: Number of bodies that have begun.
    """

    def __init__(self) -> None:
        self.loaded: int | None = None
        self.rest: int | None = None
        self.begun = 0
        self._epoch: int | None = None  # the one that `Account.epochs` has yielded
        self._loops: dict[object, int] = {}  # the batch loops in progress, with the epochs of their phases

    @property
    def within(self) -> bool:
        """Whether the program is in an epoch that `Account.epochs` has yielded."""
        return self._epoch is not None

    @property
    def unfinished(self) -> int | None:
        """The epoch whose body a resume from here must finish, because the program is in one of its batch loops."""
        if not self._loops:
            return self.loaded
        return max(self._loops.values()) if self._epoch is None else self._epoch

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """The context in which the program runs the body of this epoch."""
        self._epoch, self.begun = number, self.begun + 1
        try:
            yield
            self.loaded = None  # the first epoch that a resume yields
        finally:
            self._epoch = None
            self._loops.clear()  # a loop that the program left can still have its iterator

    @contextmanager
    def loop(self, epoch: int) -> Iterator[None]:
        """The context of a batch loop, in this epoch of a phase that trains."""
        loop = object()
        self.loaded, self._loops[loop] = None, epoch
        try:
            yield
        finally:
            self._loops.pop(loop, None)
