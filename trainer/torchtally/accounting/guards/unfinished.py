"""A run that begins with the weights of one that this process has left, as a second try after an error."""

import weakref
from collections.abc import Callable

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.checkpoints.objects import parameters_of

_left: dict[str, dict[int, "weakref.ref[Tensor]"]] = {}  # parameters of runs that were left, by run and id


class Unfinished(Guard):
    """Looks at the parameters that steps have trained."""

    name = "unfinished"

    def __init__(self, gradients: Gradients, excused: Callable[[], bool]) -> None:
        self._gradients, self._excused = gradients, excused
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that were looked at
        self._run: str | None = None  # the one that was left

    def problem(self) -> str | None:
        for optimizer in self._gradients.trained:
            if optimizer not in self._known:
                self._known.add(optimizer)
                self._run = next((run for run, left in _left.items() if _has(left, optimizer)), self._run)
        if self._run is None or self._excused():
            return None
        return (
            f"run {self._run} has ended in this process before its plan, and the model has its samples: load the state "
            "of that run and its weights; only if the weights begin anew, pass anew=True"
        )

    def leave(self, run: str) -> None:
        """The run ends before its plan."""
        trained = (each for optimizer in self._gradients.trained for each in parameters_of(optimizer))
        _left[run] = {id(each): weakref.ref(each) for each in trained}


def _has(left: dict[int, "weakref.ref[Tensor]"], optimizer: Optimizer) -> bool:
    return any((known := left.get(id(each))) and known() is each for each in parameters_of(optimizer))


def forget(run: str) -> None:
    """A later account continues with this run."""
    _left.pop(run, None)
