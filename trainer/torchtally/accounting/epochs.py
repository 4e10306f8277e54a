"""One epoch after another, for a library that drives the loop."""

from collections.abc import Callable, Iterator
from typing import Any

from torchtally.accounting.collate import Batch


class Epochs:
    """The data of one epoch after another, for a library that drives the loop: each `iter()` is the next epoch.

    Its length is the number of batches, so libraries need not fetch a batch ahead to see the end. If one does, a batch
    counts early, and the epoch's end is right all the same. A library that stops after the last batch does not ask for
    the next one, which would count the last. The next `iter()` or `end()` counts it.
    """

    def __init__(self, epoch: Callable[[int], Iterator[Batch]], steps: int):
        self._epoch, self._steps = epoch, steps
        self._made = self._taken = 0  # epochs begun, and batches handed out in the last of them
        self._batches: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self.end()
        self._made, self._taken = self._made + 1, 0
        self._batches = self._epoch(self._made)
        for batch in self._batches:
            self._taken += 1
            yield batch.data

    def __len__(self) -> int:
        return self._steps

    def end(self) -> None:
        """End the epoch: count the last batch if the library has taken all of them."""
        if self._taken == self._steps:
            next(self._batches, None)
