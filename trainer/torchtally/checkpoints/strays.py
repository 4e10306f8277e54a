"""Parameters that are stepped although no object of a checkpoint has them, and optimizers whose state none has."""

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtally.checkpoints.objects import Objects, local, parameters_of, tensors

_open: weakref.WeakSet[Objects] = weakref.WeakSet()  # of all checkpoints in use: what one has, another need not have


@dataclass
class _Known:
    """What is known of an optimizer that has stepped."""

    first: int  # commits before its first step
    groups: int
    strays: bool  # whether it has such parameters
    checked: bool = False  # whether its state was looked for


class Strays:
    """Finds what lasts from one commit to the next, and would be lost in a resume.

    What an inner loop trains does not last: it is made anew, or written to, before it is stepped for another commit. A
    copy of a model's parameters that is written back before each commit is not lost, either.
    """

    def __init__(self, objects: Objects):
        self._objects = objects
        self._known: weakref.WeakKeyDictionary[Optimizer, _Known] = weakref.WeakKeyDictionary()
        # By the id of a parameter, commits before its last step, and its version after that.
        self._stepped: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._doubted: list[Tensor] = []  # that last, and had none of the saved values before a step
        self._problem: str | None = None
        _open.add(objects)

    def before_step(self, optimizer: Optimizer, commits: int) -> None:
        """Take note that an optimizer is about to step, after so many commits."""
        known = self._known.get(optimizer)
        if known and not known.checked and known.first < commits:
            known.checked = True
            if self._lacks_state_of(optimizer):
                self._problem = (
                    f"checkpoints: the optimizer {type(optimizer).__name__} has a state that no object saves: give it "
                    "as well, or a resume would begin with a new one"
                )
        if (known and not known.strays) or not self._stepped:
            return
        lasting = []
        for each in self._strays_of(optimizer):
            _, when, version = self._stepped.get(id(each), (None, commits, 0))
            if when < commits and each._version == version:
                lasting.append(each)
        if not _are_copies(lasting, self._saved):
            self._doubted += lasting

    def after_step(self, optimizer: Optimizer, commits: int) -> None:
        """Take note that an optimizer has stepped, after so many commits."""
        known, groups = self._known.get(optimizer), len(optimizer.param_groups)
        if known is None or known.groups != groups:
            first = known.first if known else commits
            known = self._known[optimizer] = _Known(first, groups, strays=bool(self._strays_of(optimizer)))
        if known.strays:
            for each in self._strays_of(optimizer):
                forget = partial(self._forget, id(each))
                self._stepped[id(each)] = weakref.ref(each, forget), commits, each._version

    def problem(self) -> str | None:
        """Why checkpoints would lack something at this commit."""
        doubted, self._doubted = self._doubted, []
        if not _are_copies(doubted, self._saved):
            return (
                "checkpoints: an optimizer steps parameters of which no object has a state: give their model as well, "
                "or a resume would begin with new ones"
            )
        return self._problem

    def _forget(self, key: int, _: object) -> None:
        self._stepped.pop(key, None)

    def close(self) -> None:
        """No longer count what these checkpoints hold as saved."""
        _open.discard(self._objects)

    @property
    def _saved(self) -> Iterable[Tensor]:
        return (tensor for each in _open for tensor in (*each.parameters, *each.tensors_of_others))

    def _strays_of(self, optimizer: Optimizer) -> list[Tensor]:
        own = {id(parameter) for each in _open for parameter in each.parameters}
        return [each for each in parameters_of(optimizer) if id(each) not in own]

    def _lacks_state_of(self, optimizer: Optimizer) -> bool:
        own = {id(tensor) for each in _open for tensor in each.tensors_of_optimizers}
        left = [tensor for tensor in tensors([*optimizer.state.values()]) if id(tensor) not in own]
        return not _are_copies(left, (tensor for each in _open for tensor in each.tensors_of_others))


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
