"""What steps leave in a few parameters of the optimizers that a program has named: the facts that guards share.

Hashes are taken before the first step, and after a few: the first ones of an epoch and its last one. Of some of the
parameters, the values that these steps leave are kept.
"""

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.checkpoints.hashing import hash_of
from torchtally.checkpoints.objects import local, parameters_of

_LEAST = 64  # values of a parameter, if one has so many: small ones can be equal by chance, after steps of one size
_CLASSES, _OF_CLASS = 8, 2  # sizes of which parameters are watched, and how many of each: some may be experts alone
_KEPT, _MOST = 3, 1 << 20  # parameters of an optimizer whose values are kept, and values of one

Class = tuple[str, int]  # data type, and number of values


@dataclass(eq=False)
class Watched:
    """A parameter.

    Attributes:
        reference: What it is, as long as the program has it.
        before: The hash of its values before the first step, if they can be compared.
        left: The values that a step has left, if they are kept.
        fresh: Whether that was the last step.
        replicated: Whether the program means it to be equal on all ranks.
        whole: Whether it is no part of a parameter.
        lasts: Whether nothing but steps has written to it, as far as that was looked for.
    """

    reference: "weakref.ref[Tensor]"
    before: int
    left: Tensor | None
    replicated: bool
    whole: bool
    fresh: bool = False
    steps: int = 0
    lasts: bool = True

    @property
    def size(self) -> int:
        """The number of its values."""
        return 0 if self.values is None else self.values.numel()

    @property
    def values(self) -> Tensor | None:
        """Those of now."""
        found = self.reference()
        return None if found is None else local(found).detach()

    def is_as_left(self) -> bool:
        """Whether it has the values that are kept."""
        return self.left is None or self.is_as(self.left)

    def is_as(self, values: Tensor) -> bool:
        """Whether it has these values, if they can be compared: a program can convert its model."""
        now = self.values
        if now is None or now.shape != values.shape:
            return True
        now, values = now.to(values.device), values.to(now.dtype)
        return torch.equal(now, values) or torch.allclose(now, values, rtol=0, atol=0, equal_nan=True)

    def keep(self) -> None:
        """Keep the values of now."""
        if self.left is None or (now := self.values) is None:
            return
        if (now.shape, now.dtype, now.device) == (self.left.shape, self.left.dtype, self.left.device):
            self.left.copy_(now)
        else:
            self.left = now.clone()
        self.fresh = True

    def look(self) -> None:
        """Find out whether something else than a step has written to it. On a GPU, that waits for it."""
        if self.lasts and self.steps and self.fresh:
            self.lasts = self.is_as_left()


@dataclass
class _Of:
    """What is known of an optimizer, of the epoch in progress alone but for its order."""

    order: int
    few: list[Watched] | None = None
    ids: set[int] = field(default_factory=set)  # of its parameters
    number: int = 0  # of its last step
    whole: int | None = None  # a hash of all parameters, before or after its first step that has changed none


class Weights:
    """What the steps of the named optimizers of one account leave.

    Attributes:
        asked: Whether a guard wants to know any of this.
        blind: Whether a step was compiled or captured, so that nothing is known of the parameters.
        in_parts: Whether an optimizer steps parts of parameters, as with FSDP.
        written: Whether something else than a step has written to what the last epoch has left, since a guard asked.
        counted: How many steps of this epoch had gradients of batches, for parameters that ranks share.
        marks: The hashes of parameters that have changed, after some of these steps.
    """

    def __init__(self) -> None:
        self.asked = True
        self.blind = self.in_parts = self.written = False
        self.counted = 0
        self.marks: dict[str, list[int]] = {}
        self._known: dict[int, Watched] = {}  # by the id of the parameter
        self._order = count(1)
        self._of: weakref.WeakKeyDictionary[Optimizer, _Of] = weakref.WeakKeyDictionary()
        self._began: dict[Watched, Tensor] = {}  # the values before the first step of this epoch
        self._unchanged: set[str] = set()  # phases in progress in which no step has changed what is kept
        self._stepping: Optimizer | None = None
        self._looks = self._replicated = False  # at this step, and as its optimizer was named
        self._recent = False  # whether a parameter may be fresh

    @property
    def watched(self) -> Iterator[Watched]:
        """The parameters that are there."""
        return (each for each in self._known.values() if each.reference() is not None)

    def begin(self, phase: str) -> None:
        """An epoch of a phase that trains begins."""
        self._unchanged.add(phase)

    def is_unchanged(self, phase: str) -> bool:
        """Whether no step of the epoch in progress has changed a parameter, or all of the changes are put back."""
        if self.blind:
            return False
        if phase not in self._unchanged:
            there = [(each, values) for each, values in self._began.items() if each.reference() is not None]
            return bool(there) and all(each.is_as(values) for each, values in there)
        return all(of.whole in (None, _hash_of_all(each)) for each, of in self._of.items())

    def close(self, phase: str) -> None:
        """The epoch has ended."""
        self._unchanged.discard(phase)
        self._stepping = None  # an error may have ended its step
        self.counted, self.marks, self._began = 0, {}, {}
        for optimizer, of in [*self._of.items()]:
            self._of[optimizer] = _Of(of.order)

    def will_step(self, optimizer: Optimizer, *, replicated: bool, last: bool) -> None:
        """Before a step of a named optimizer; `last` if the loop has all batches of an epoch."""
        if torch.compiler.is_compiling() or compat.captures():
            self.blind = True
            return
        if not self.asked:
            return
        if self._stepping not in (None, optimizer):  # within the step of another, it has the same parameters
            return
        self._stepping, self._replicated = optimizer, replicated
        of = self._of.get(optimizer) or self._of.setdefault(optimizer, _Of(next(self._order)))
        if of.few is None:
            of.few = self._chosen(optimizer, of, replicated)
        of.number += 1
        self._looks = last or not of.number & (of.number - 1)
        self._recent |= self._looks
        if not (self._recent or self._unchanged):
            return
        for each in self._kept(of):
            lasted = each.lasts
            each.look()
            self.written |= of.number == 1 and each.steps > 1 and each.replicated and each.lasts != lasted
            if self._unchanged or not each.steps:
                each.keep()
            if of.number == 1 and each.left is not None:
                self._began.setdefault(each, each.left.clone())
        if self._unchanged and last and of.whole is None:
            of.whole = _hash_of_all(optimizer)

    def has_stepped(self, optimizer: Optimizer, phases: set[str]) -> None:
        """After it, with gradients of batches of these phases."""
        if self._stepping is not optimizer:
            return
        self._stepping = None
        self.counted += bool(phases) and self._replicated
        if not (self._recent or self._unchanged):
            return
        of = self._of[optimizer]
        kept = self._kept(of)
        if self._unchanged & phases:
            if not all(each.is_as_left() for each in kept):
                self._unchanged -= phases
            elif of.whole is None:
                of.whole = _hash_of_all(optimizer)
        for each in kept:
            each.fresh = False
            if self._looks:
                each.keep()
                each.steps += 1
        self._recent = any(each.fresh for each in self._known.values())
        if phases and self._looks:
            few = [each for each in of.few or () if each.replicated and each.whole]
            hashes = [(hash_of(now), each.before) for each in few if (now := each.values) is not None]
            self.marks[f"step {of.number} of optimizer {of.order}"] = [now for now, before in hashes if now != before]

    def keep(self, *, known: bool) -> None:
        """Take the values of now for those that the last step has left; where these are kept, only if `known`."""
        self._recent = True
        for each in self.watched:
            if known or not each.fresh:
                each.keep()

    def _kept(self, of: _Of) -> list[Watched]:
        return [each for at, each in self._known.items() if each.left is not None and at in of.ids]

    def _chosen(self, optimizer: Optimizer, of: _Of, replicated: bool) -> list[Watched]:
        """Watch a few of an optimizer's parameters: of those that have gradients, or get them within the step."""
        parameters = [*parameters_of(optimizer)]
        of.ids = {*map(id, parameters)}
        self._known = {at: each for at, each in self._known.items() if each.reference() is not None}
        self._began = {each: values for each, values in self._began.items() if each.reference() is not None}
        self.in_parts |= any(is_part(each) for each in parameters)
        with_gradients = [each for each in parameters if each.grad is not None]
        few = _few_of(with_gradients or [each for each in parameters if each.requires_grad])
        for each in few:
            if id(each) not in self._known:
                self._known[id(each)] = _watched(each, replicated)
        found = [self._known[id(each)] for each in few]
        small = sorted(found, key=lambda known: known.size)
        for known in [*small[:1], *(known for known in small[1:_KEPT] if known.size <= _MOST)]:
            if known.left is None and (now := known.values) is not None:
                known.left = now.clone()
        return found


def _watched(parameter: Tensor, replicated: bool) -> Watched:
    whole = is_whole(parameter)
    return Watched(weakref.ref(parameter), hash_of(parameter) if whole else 0, None, replicated, whole)


def is_whole(parameter: Tensor) -> bool:
    """Whether its values can be compared with those of other ranks."""
    return not is_part(parameter) and _is_readable(parameter)


def _is_readable(parameter: Tensor) -> bool:
    return parameter.layout is torch.strided and not parameter.is_meta


def is_part(parameter: Tensor) -> bool:
    """Whether it is a part of a parameter, as FSDP steps them."""
    return type(parameter) not in (Tensor, nn.Parameter) or getattr(parameter, "_fsdp_flattened", False)


def _few_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the first of each class, of the smallest sizes that tell enough. What can be compared comes first."""
    of_class: dict[tuple[bool, Class], list[Tensor]] = defaultdict(list)
    for each in parameters:
        if _is_readable(each) and local(each).numel():
            of_class[is_part(each), class_of(each)].append(each)
    least = min(_LEAST, max((size for _, (_, size) in of_class), default=0))
    classes = sorted((each for each in of_class if each[1][1] >= least), key=lambda each: (each[0], each[1][1]))
    return [each for found in classes[:_CLASSES] for each in of_class[found][:_OF_CLASS]]


def class_of(parameter: Tensor) -> Class:
    """Data type and size."""
    return str(parameter.dtype).removeprefix("torch."), local(parameter).numel()


def _hash_of_all(optimizer: Optimizer) -> int:
    return hash(tuple(hash_of(local(each)) for each in parameters_of(optimizer) if _is_readable(each)))
