"""A run that begins with the weights of one that this process has left, as a second try after an error."""

from collections.abc import Callable

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.turns import Trained, Turns

_left: dict[str, Trained] = {}  # by run


class Unfinished(Guard):
    """Looks at the parameters that steps have trained."""

    name = "unfinished"

    def __init__(self, turns: Turns, excused: Callable[[], bool]) -> None:
        self._turns, self._excused = turns, excused
        self._run: str | None = None  # the one that was left

    def problem(self) -> str | None:
        trained = self._turns.trained
        if _left and self._run is None:
            self._run = next((run for run, left in _left.items() if _has_one(left, trained)), None)
        if self._run is None or self._excused():
            return None
        return (
            f"run {self._run} has ended in this process before its plan, and the model has its samples: load the state "
            "of that run and its weights; only if the weights begin anew, pass anew=True"
        )

    def ends(self) -> str | None:
        return self.problem()  # another account of this process may have been left since the first step

    def leave(self, run: str) -> None:
        """The run ends before its plan."""
        _left[run] = self._turns.trained


def _has_one(left: Trained, trained: Trained) -> bool:
    return any(at in left and (now := each()) is not None and left[at]() is now for at, each in trained.items())


def forget(run: str) -> None:
    """A later account continues with this run."""
    _left.pop(run, None)
