"""What a named optimizer steps or has, and no object of a checkpoint saves: a resume would begin with new ones."""

import weakref
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtally.checkpoints.objects import Objects, local, parameters_of, tensors

_open: weakref.WeakSet[Objects] = weakref.WeakSet()  # of all checkpoints in use: what one has, another need not have


def hold(objects: Objects) -> None:
    """Take note of the objects of checkpoints in use."""
    _open.add(objects)


def release(objects: Objects) -> None:
    """They are in use no more."""
    _open.discard(objects)


def problem(optimizers: Iterable[Optimizer]) -> str | None:
    """Return why checkpoints lack something of these optimizers. Copies of what is missing are as good."""
    for optimizer in optimizers:
        own = {id(parameter) for each in _open for parameter in each.parameters}
        left = [each for each in parameters_of(optimizer) if id(each) not in own]
        if not _are_copies(left, (tensor for each in _open for tensor in (*each.parameters, *each.tensors_of_others))):
            return (
                "checkpoints: an optimizer steps parameters of which no object has a state: give their model as well, "
                "or a resume would begin with new ones"
            )
        own = {id(tensor) for each in _open for tensor in each.tensors_of_optimizers}
        left = [tensor for tensor in tensors([*optimizer.state.values()]) if id(tensor) not in own]
        if not _are_copies(left, (tensor for each in _open for tensor in each.tensors_of_others)):
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
