"""Whether weights are those of the other ranks, or those that a state was saved with: by hashes of a few parameters.

Ranks that train apart, and a program that has not loaded its weights, have no parameter in common with what they should
have. A part can differ: experts are different on each rank, and a head can be new.
"""

import gc
import json
import weakref
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtally.checkpoints import conditions
from torchtally.checkpoints.hashing import hash_of

_FEW = 16  # parameters: small ones tell as much as large ones
_LEAST = (
    256  # values of one, if there are such: Adam's first step has the sign of a gradient alone, which ranks can share
)
Hash = tuple[str, int, int]  # data type, number of values, hash of their bits


@dataclass(frozen=True)
class Few:
    """A few of the parameters that a rank has stepped, as JSON has them.

    Attributes:
        alike: A checksum of the conditions and the shapes. Ranks with another one are not compared.
        hashes: Without those that tell nothing.
    """

    alike: int
    hashes: list[Hash]

    @classmethod
    def of(cls, values: dict[str, object] | None) -> Self | None:
        """From JSON."""
        return values and cls(values["alike"], [tuple(each) for each in values["hashes"]])  # type: ignore[arg-type,attr-defined,return-value]


def apart(ranks: Sequence[Few | None]) -> str | None:
    """Return a sentence on the first rank that has no parameter of rank 0's, although it steps the same ones."""
    first, *others = ranks
    if not (first and first.hashes):
        return None
    for rank, each in enumerate(others, 1):
        if each and each.alike == first.alike and each.hashes and not set(first.hashes) & set(each.hashes):
            return (
                f"ranks 0 and {rank} train models of their own, as no parameter is equal on both: average the "
                "gradients over all ranks in each step, as DistributedDataParallel does, or the weights before the "
                "last commit() of an epoch"
            )
    return None


class Weights:
    """The parameters that the optimizers of one account step with its samples."""

    def __init__(self) -> None:
        self._stepped: dict[int, weakref.ref[Tensor]] = {}
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._saved: set[Hash] = set()  # by the state that is loaded, until a step comes
        self.problem: str | None = None

    def has_stepped(self, optimizer: Optimizer) -> None:
        """Take note of a step with samples."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._stepped |= {id(each): weakref.ref(each) for each in _learning(optimizer)}

    def few(self) -> Few | None:
        """A few of the parameters with their values now; None if a rank has only a part of one."""
        parameters = self._parameters
        if not parameters or not all(_is_whole(each) for each in parameters):
            return None
        enough = [each for each in parameters if each.numel() >= _LEAST] or parameters
        sizes = sorted(each.numel() for each in enough)
        small = (each for each in enough if each.numel() <= sizes[:_FEW][-1])
        hashes = sorted(found for each in small if (found := _hash(each))[2])
        shapes = sorted((str(each.dtype), *each.shape) for each in parameters)
        alike = zlib.crc32(repr([shapes, conditions.of_this_rank(parameters[0].device)]).encode())
        return Few(alike, hashes[:_FEW])

    def to_text(self) -> str | None:
        """The same for a state; None if there is nothing to compare."""
        if self._saved:  # no step since they were loaded
            return json.dumps(sorted(self._saved))
        few = self.few()
        return json.dumps(few.hashes) if few and few.hashes else None

    def load(self, text: str) -> None:
        """Expect the weights that a state was saved with. Raises ValueError if the text is none of `to_text`."""
        values = json.loads(text)
        if not isinstance(values, list) or not all(_is_hash(each) for each in values):
            raise ValueError("its weights must be a list of a data type, a number of values, and a hash of each")
        self._saved = {tuple(each) for each in values}

    def will_step(self, optimizer: Optimizer) -> None:
        """Before the first step with samples since a state was loaded, look for the weights."""
        if not self._saved or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return
        saved, self._saved = self._saved, set()
        parameters = _learning(optimizer)
        if not all(_is_whole(each) for each in parameters) or _find(saved, parameters):
            return
        # They can be elsewhere, as where what was trained is frozen now.
        if _find(saved, (each for each in gc.get_objects() if type(each) is nn.Parameter)) is False:
            self.problem = (
                "the account's state was loaded, and no parameter has a value that was saved with it: load the states "
                "of the model and of its optimizer from the same checkpoint, with strict=True"
            )

    @property
    def _parameters(self) -> list[Tensor]:
        return [each for reference in self._stepped.values() if (each := reference()) is not None]


def _learning(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that a step changes. Some optimizers delete gradients."""
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    return [each for each in parameters if each.grad is not None] or parameters


def _is_whole(parameter: Tensor) -> bool:
    """Whether it is all of a parameter, which ranks that share it have alike. FSDP and DeepSpeed step parts."""
    return type(parameter) is nn.Parameter and not getattr(parameter, "_fsdp_flattened", False)


def _find(saved: set[Hash], parameters: Iterable[Tensor]) -> bool | None:
    """Whether a parameter has a value that was saved; None if none is of a type and size that was."""
    sizes = {each[:2] for each in saved}
    found = None
    for each in parameters:
        if (_type(each), each.numel()) in sizes and not each.is_meta:
            if _hash(each) in saved:
                return True
            found = False
    return found


def _hash(parameter: Tensor) -> Hash:
    return _type(parameter), parameter.numel(), hash_of(parameter.detach())


def _type(parameter: Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _is_hash(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, int, int]
