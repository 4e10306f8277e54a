"""A batch as a loader has it, before it is counted."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtally.accounting.batches.collate import Batch
from torchtally.proof.permutation import Indices

NOTHING: Mapping[int, str] = {}


class Taken(NamedTuple):
    """A batch that a loader yields.

    Attributes:
        indices: Its samples, int64 (samples,). Those that are on a GPU are not waited for: the proof looks at them.
        data: What the collate_fn has made of them.
        dropped: Samples that the collate_fn has left out, with the reasons.
        asked: The samples of its step, which are the same object as `indices` where nothing else was said; None if the
            loader does not know the steps.
    """

    indices: Indices | Tensor
    data: Any
    dropped: Mapping[int, str] = NOTHING
    asked: Indices | Tensor | None = None

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of an epoch: that is known once it is counted."""
        return False

    @property
    def batch(self) -> Batch:
        """It for a loop that takes it with its indices."""
        return Batch(copy_of(self.indices), self.data, dropped=self.dropped)


def copy_of(indices: Indices | Tensor) -> Tensor:
    """The indices as a loop receives them, which may write to them."""
    return indices.clone() if isinstance(indices, Tensor) else torch.from_numpy(indices.copy())
