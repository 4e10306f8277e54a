"""A batch as a loader has it, before it is counted."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchtally.accounting.batches.collate import Batch
from torchtally.proof.permutation import Indices

NOTHING: Mapping[int, str] = {}


class Taken(NamedTuple):
    """A batch that a loader yields.

    Attributes:
        indices: Its samples, int64 (samples,).
        data: What the collate_fn has made of them.
        dropped: Samples that the collate_fn has left out, with the reasons.
        asked: The samples of its step, which are the same object as `indices` where nothing else was said; None if the
            loader does not know the steps.
    """

    indices: Indices
    data: Any
    dropped: Mapping[int, str] = NOTHING
    asked: Indices | None = None

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of an epoch: that is known once it is counted."""
        return False

    @property
    def batch(self) -> Batch:
        """It for a loop that takes it with its indices."""
        return Batch(torch.tensor(self.indices), self.data, dropped=self.dropped)
