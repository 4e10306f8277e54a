"""What a named optimizer steps or has, and no object of a checkpoint saves: a resume would begin with new ones."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.checkpoints.objects import Objects, local, parameters_of, tensors


class Unsaved(Guard):
    """Looks for what a resume would lack, among the objects of a checkpoint that is saved."""

    name = "unsaved"

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def saves(self, objects: Objects) -> str | None:
        for optimizer in self._gradients.optimizers:
            own = {id(parameter) for parameter in objects.parameters}
            left = [each for each in parameters_of(optimizer) if id(each) not in own]
            if not _are_copies(left, (*objects.parameters, *objects.tensors_of_others)):
                return (
                    "checkpoints: an optimizer steps parameters of which no object has a state: give their model as "
                    "well, or a resume would begin with new ones"
                )
            own = {id(tensor) for tensor in objects.tensors_of_optimizers}
            left = [tensor for tensor in tensors([*optimizer.state.values()]) if id(tensor) not in own]
            if not _are_copies(left, objects.tensors_of_others):
                return (
                    f"checkpoints: the optimizer {type(optimizer).__name__} has a state that no object saves: give it "
                    "as well, or a resume would begin with a new one"
                )
        return None


def _are_copies(sought: list[Tensor], saved: Iterable[Tensor]) -> bool:
    """Whether each tensor has the values of one of its own that is saved."""
    known = defaultdict(list)
    for each in saved if sought else ():
        known[each.shape, each.dtype].append(local(each))
    return all(_take_equal(known[each.shape, each.dtype], local(each)) for each in sought)


def _take_equal(known: list[Tensor], sought: Tensor) -> bool:
    """Whether a known tensor has the values that are sought. It is taken out: copies are mostly in the same order."""
    for at, each in enumerate(known):
        if each.shape == sought.shape and torch.equal(each, sought.to(each.device)):
            del known[at]
            return True
    return False
