"""A batch on its way from a loader into the weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtally.accounting.batches.collate import Batch
from torchtally.checkpoints.objects import tensors
from torchtally.proof.permutation import Indices

if TYPE_CHECKING:
    from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress


@dataclass(eq=False, slots=True)
class Handed:
    """A batch that the loop was handed.

    Attributes:
        epoch: Counts it, or drops it.
        step: Number of its step.
        indices: Its samples, int64 (samples,).
        data: What the collate_fn has made of them.
        dropped: Samples that the collate_fn has left out, with the reasons.
        rows: Samples of all ranks in the step.
        share: What its mean loss is multiplied with, for the mean over the samples of all ranks in the step.
        position: Where the step begins in the order.
        is_last: Whether it is the last one of its epoch.
        weighed: Whether it has a loss.
        left: Whether the loop has left its epoch here.
        counted: Whether it is in the weights.
        left_out: Whether the program has left it out for good.
        users: Numbers of the optimizers that have stepped with its gradients.
        models: Numbers of the models that they train.
        copies: Copies of its tensors by which the loop has named it.
        named: Places of these tensors.
    """

    epoch: "EpochInProgress"
    step: int
    indices: Indices
    data: Any
    dropped: Mapping[int, str]
    rows: int
    share: float
    position: int
    is_last: bool
    weighed: bool = False
    left: bool = False
    counted: bool = False
    left_out: bool = False
    users: frozenset[int] = frozenset()
    models: frozenset[int] = frozenset()
    copies: tuple[Tensor, ...] = ()
    named: frozenset[int] = frozenset()
    _batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """It for a loop that takes it with its indices: the same object each time."""
        if self._batch is None:
            indices = torch.tensor(self.indices)  # a copy: the loop may write to it
            epoch = self.epoch
            epoch.given[self.step] = indices
            self._batch = Batch(indices, self.data, self.rows, epoch.phase, self.step, epoch.total, self.dropped)
        return self._batch

    def is_as(self, named: Any) -> bool:
        """Whether the loop has received it as this object, or in it."""
        if self.data is named or self._batch is named:
            return True
        return any(each is named for each in (*tensors(self.data), *self.copies))

    def places_of(self, named: Any) -> frozenset[int]:
        """The places of its tensors of which `named` has copies, as a prefetcher makes them; none if it has others."""
        own = [*enumerate(tensors(self.data))]
        found = [{place for place, each in own if _are_equal(each, copy)} for copy in tensors(named)]
        return frozenset().union(*found) if all(found) else frozenset()

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        return self.epoch.where(self.step)


def _are_equal(own: Tensor, copy: Tensor) -> bool:
    return own.shape == copy.shape and own.dtype == copy.dtype and torch.equal(own, copy.to(own.device))
