"""A run that begins with the weights of one that this process has left, as a second try after an error."""

import weakref
from collections.abc import Callable

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchtally.accounting.guards.guard import Guard
from torchtally.checkpoints.objects import parameters_of

_left: dict[str, dict[int, "weakref.ref[Tensor]"]] = {}  # parameters of runs that were left, by run and id


class Unfinished(Guard):
    """Notes the parameters that steps have trained."""

    name = "unfinished"

    def __init__(self, excused: Callable[[], bool]) -> None:
        self._excused = excused
        self._trained: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        self._run: str | None = None  # the one that was left

    def has_stepped(self, optimizer: Optimizer, trained: bool, evaluates: str | None) -> None:
        if not trained or optimizer in self._trained:
            return
        self._trained[optimizer] = None
        for run, left in _left.items():
            if any((known := left.get(id(each))) and known() is each for each in parameters_of(optimizer)):
                self._run = run

    def problem(self) -> str | None:
        if self._run is None or self._excused():
            return None
        return (
            f"run {self._run} has ended in this process before its plan, and the model has its samples: load the state "
            "of that run and its weights; only if the weights begin anew, pass anew=True"
        )

    def leave(self, run: str) -> None:
        """The run ends before its plan."""
        _left[run] = {id(each): weakref.ref(each) for optimizer in self._trained for each in parameters_of(optimizer)}


def forget(run: str) -> None:
    """A later account continues with this run."""
    _left.pop(run, None)
