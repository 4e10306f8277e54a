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

    def __init__(self, epoch: Callable[[], Iterator[Batch]], steps: int):
        self._epoch, self._steps = epoch, steps
        self._batches: Iterator[Batch] = iter(())
        self._all_taken = False

    def __iter__(self) -> Iterator[Any]:
        self.end()
        self._batches = self._epoch()
        for batch in self._batches:
            self._all_taken = batch.step == batch.steps
            yield batch.data

    def __len__(self) -> int:
        return self._steps

    def end(self) -> None:
        """End the epoch: count the last batch if the library has taken all of them."""
        if self._all_taken:
            self._all_taken = False
            next(self._batches, None)
