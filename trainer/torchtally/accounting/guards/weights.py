"""Whether ranks train one model, and whether a resume has the weights of its state: by hashes of parameters.

A parameter tells something if it lasts and has changed. An inner loop writes to its parameters before it begins again,
and what no step changes is equal in models that are trained apart. Of a model, a part can differ: experts are different
on each rank, and a head can be new.
"""

import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.accounting.ledger.membership import Membership
from torchtally.accounting.ledger.state import Hash
from torchtally.checkpoints import conditions
from torchtally.checkpoints.hashing import hash_of
from torchtally.checkpoints.objects import parameters_of

_LEAST = 64  # values of a parameter, if one has so many: small ones can be equal by chance, after steps of one size
_MOST = 1000  # optimizers that are watched: a loop can make one for each batch
_CLASSES, _OF_CLASS = 16, 2  # sizes of which parameters are compared, and how many of each: some may be experts alone

Class = tuple[str, int]  # data type, and number of values
Item = TypeVar("Item")


@dataclass(frozen=True)
class ParameterHashes:
    """A few of the parameters that a rank has stepped, as JSON has them.

    Attributes:
        alike: A checksum of what ranks must share to be compared: data-parallel group, conditions, and shapes.
        hashes: Those of the few.
    """

    alike: int
    hashes: list[Hash]

    @classmethod
    def of(cls, values: dict[str, Any] | None) -> Self | None:
        """From JSON."""
        return values and cls(values["alike"], [_as_hash(each) for each in values["hashes"]])  # type: ignore[return-value]


def apart(ranks: Iterable[tuple[int, ParameterHashes | None]]) -> str | None:
    """Return a sentence on the first rank whose parameters are none of those of another rank."""
    firsts: dict[int, tuple[int, ParameterHashes]] = {}
    for rank, each in ranks:
        if each is None or not each.hashes:
            continue
        first, other = firsts.setdefault(each.alike, (rank, each))
        if not set(other.hashes) & set(each.hashes):
            return (
                f"ranks {first} and {rank} train models of their own, as none of the parameters that were compared is "
                "equal on both: average the gradients over all ranks in each step, as DistributedDataParallel does, or "
                "the weights before the last commit() of an epoch"
            )
    return None


@dataclass
class _Watched:
    """The parameters of an optimizer from its first step on, until another commit shows which of them last."""

    commits: int  # before that step
    hashes: list[tuple["weakref.ref[Tensor]", int]]  # before that step
    versions: dict[int, int] = field(default_factory=dict)  # after the last step so far, by id


class Weights:
    """The parameters that the optimizers of one account step with its samples.

    Args:
        members: The ranks that share the samples.
        optimizers: Those that the program has named so far.
    """

    def __init__(self, members: Membership, optimizers: Callable[[], list[Optimizer]]) -> None:
        self._members, self._named = members, optimizers
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched | None] = weakref.WeakKeyDictionary()
        self._optimizers = 0  # so far
        self._lasting: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # with the hash before the first step
        self._in_parts = False
        self._sought: set[Hash] = set()  # what a loaded state was saved with, until it is found

    def will_step(self, optimizer: Optimizer, commits: int) -> None:
        """Before a step with samples, after so many commits."""
        if torch.compiler.is_compiling() or compat.captures():
            return
        if optimizer not in self._watched:
            self._optimizers += 1
            if self._optimizers > _MOST:
                return
            parameters = [*parameters_of(optimizer)]
            self._in_parts |= any(_is_part(each) for each in parameters)
            whole = [] if self._in_parts else [each for each in parameters if _is_whole(each)]
            self._watched[optimizer] = _Watched(commits, [(weakref.ref(each), hash_of(each)) for each in whole])
        elif (known := self._watched[optimizer]) and commits > known.commits:
            for reference, before in known.hashes:
                each = reference()
                if each is not None and each._version == known.versions.get(id(each)):
                    self._lasting[id(each)] = reference, before
            self._watched[optimizer] = None

    def has_stepped(self, optimizer: Optimizer) -> None:
        """After such a step."""
        if not torch.compiler.is_compiling() and (known := self._watched.get(optimizer)):
            known.versions = {id(each): each._version for each in parameters_of(optimizer)}

    def few(self) -> ParameterHashes | None:
        """A few of the parameters with their values now; None if there is nothing to compare with other ranks."""
        lasting = [*self._with_hashes_before()]
        if self._in_parts or self._members.world == 1 or not lasting:
            return None
        hashes = [found for each, before in lasting if (found := _hash(each))[2] != before]
        shapes = sorted((str(each.dtype), *each.shape) for each, _ in lasting)
        here = [self._members.first, shapes, conditions.of_this_rank(lasting[0][0].device)]
        return ParameterHashes(zlib.crc32(repr(here).encode()), _chosen((each[:2], each) for each in sorted(hashes)))

    @property
    def saved(self) -> tuple[Hash, ...]:
        """Those that a state is saved with: it is the same on every rank, so ranks with other parameters save none."""
        if self._in_parts or self._members.world < self._members.everyone.size():
            return ()
        chosen = _chosen((_class(each), (each, before)) for each, before in self._with_hashes_before())
        hashes = [(_hash(each), before) for each, before in chosen]
        return tuple(found for found, before in hashes if found[2] != before)

    def _with_hashes_before(self) -> Iterator[tuple[Tensor, int]]:
        for reference, before in self._lasting.values():
            if (each := reference()) is not None:
                yield each, before

    def seek(self, saved: Sequence[Hash]) -> None:
        """Expect what a state was saved with, now or at the first batch: some optimizers rewrite what is loaded."""
        self._sought = set() if self._find(set(saved)) else set(saved)

    def problem(self) -> str | None:
        """Why the weights are not those of the state, at the first batch."""
        sought, self._sought = self._sought, set()
        if not sought or self._find(sought) is not False:
            return None
        return (
            "the account's state was loaded, and no parameter of an optimizer has a value that was saved with it: load "
            "the states of the model and its optimizer from the same checkpoint, with strict=True, and change no "
            "weight before the first batch"
        )

    def _find(self, sought: set[Hash]) -> bool | None:
        """Whether a named optimizer has a parameter with a value that is sought; None if parameters cannot tell."""
        classes, compared, in_parts = {each[:2] for each in sought}, False, False
        for each in (parameter for optimizer in self._named() for parameter in parameters_of(optimizer)):
            in_parts |= _is_part(each)
            if _is_whole(each) and _class(each) in classes:
                compared = True
                if _hash(each) in sought:
                    return True
        return False if compared and not in_parts else None


def _is_whole(parameter: Tensor) -> bool:
    """Whether it is a module's parameter. DeepSpeed steps tensors that are parts of some, and no parameters."""
    plain = type(parameter) is nn.Parameter and not _is_part(parameter)
    return plain and parameter.layout is torch.strided and not parameter.is_meta


def _is_part(parameter: Tensor) -> bool:
    """Whether it is a part of a parameter, as FSDP steps them."""
    return type(parameter) not in (Tensor, nn.Parameter) or getattr(parameter, "_fsdp_flattened", False)


def _chosen(items: Iterable[tuple[Class, Item]]) -> list[Item]:
    """Return the first of each class, of the smallest sizes that tell enough."""
    of_class: dict[Class, list[Item]] = defaultdict(list)
    for kind, each in items:
        of_class[kind].append(each)
    least = min(_LEAST, max((size for _, size in of_class), default=0))
    classes = sorted((each for each in of_class if each[1] >= least), key=lambda each: each[1])
    return [each for found in classes[:_CLASSES] for each in of_class[found][:_OF_CLASS]]


def _class(parameter: Tensor) -> Class:
    return str(parameter.dtype).removeprefix("torch."), parameter.numel()


def _hash(parameter: Tensor) -> Hash:
    return *_class(parameter), hash_of(parameter)


def _as_hash(values: list[Any]) -> Hash:
    kind, size, value = values
    return kind, size, value
