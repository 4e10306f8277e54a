"""The parameters that a run has trained, so that a later one in this process does not take them for new ones."""

import weakref

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchtally.checkpoints.objects import parameters_of

_Parameters = dict[int, "weakref.ref[Tensor]"]
_left: dict[str, _Parameters] = {}  # of runs that this process has left before their plan, by id


class Trained:
    """The parameters that the optimizers of one account have stepped with its samples."""

    def __init__(self) -> None:
        self._parameters: _Parameters = {}
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # an id could come again

    def add(self, optimizer: Optimizer) -> str | None:
        """Take note of an optimizer. Returns the run that was left with samples in its parameters, if there is one."""
        if optimizer in self._known:
            return None
        self._known.add(optimizer)
        parameters = [*parameters_of(optimizer)]
        self._parameters |= {id(each): weakref.ref(each) for each in parameters}
        for run, trained in _left.items():
            if any((known := trained.get(id(each))) is not None and known() is each for each in parameters):
                return run
        return None

    def leave(self, run: str) -> None:
        """Keep the parameters as those of a run that is not complete."""
        _left[run] = self._parameters


def forget(run: str) -> None:
    """A later account goes on with this run."""
    _left.pop(run, None)
