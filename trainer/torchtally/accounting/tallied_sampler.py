"""A sampler that proves the training of a script: it replaces DistributedSampler, and three lines change.

    sampler = TalliedSampler(dataset, epochs=10)                # was DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for inputs, labels in sampler.tally(loader):            # was loader
            ...
    sampler.done()                                              # new

The contract is DistributedSampler's, so that the loop's mean over ranks keeps its meaning: `padded` repeats the first
samples until all ranks have equally many; drop_last=True selects `drop_last`. To use every sample exactly once if the
ranks do not divide the data evenly, the loss needs the number of rows of all ranks: use an Account, which provides it
and takes several phases (see account.py).

A library that drives the loop can take `sampler.tally(loader)` if it does not replace the loader.
"""

import sys
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from torchtally.accounting.account import Account
from torchtally.accounting.loader import Batch, Epochs, Sampler
from torchtally.errors import Ending, Refused
from torchtally.pod import failure

_TAKEN_OVER = (
    "collate_fn",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


class TalliedSampler(Sampler):
    """Replaces DistributedSampler in a training of `epochs` epochs. One per run; needs gloo for CPU tensors.

    On failure it ends the program with one sentence and an exit code of errors.py.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        epochs: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        task: str | None = None,  # default: the script's name
    ):
        self._account = Account(task=task or Path(sys.argv[0]).stem, plan={"train": epochs}, seed=seed).__enter__()
        super().__init__(len(dataset), seed=seed, shuffle=shuffle, contract="drop_last" if drop_last else "padded")
        self._given: DataLoader[Any] | None = None
        self._epochs = Epochs(lambda epoch: iter(()), 0)

    def tally(self, loader: DataLoader[Any]) -> Epochs:
        """Return the batches of `loader`, whose sampler this is; a batch counts when the loop asks for the next one.

        Each iter() is the next epoch, whatever number `set_epoch` received.
        """
        if loader is not self._given:
            with _ending():
                self._take_over(loader)
        return self._epochs

    def done(self) -> None:
        """End the run: print its last line, or exit with 3 if an epoch is missing."""
        self._epochs.end()
        self._account.__exit__(None, None, None)

    def _take_over(self, loader: DataLoader[Any]) -> None:
        """Make a loader whose batches carry their indices, from one whose batches do not."""
        if self._given is not None:
            raise Refused("tally() must receive the same DataLoader in every epoch; an Account takes several")
        if loader.sampler is not self:
            raise Refused(f"the DataLoader's sampler must be the TalliedSampler, not a {type(loader.sampler).__name__}")
        if loader.batch_size is None or loader.drop_last:
            raise Refused("the DataLoader must have a batch_size and drop_last=False: pass drop_last to TalliedSampler")
        self._given = loader
        tallied = self._account.loader(
            "train",
            loader.dataset,
            batch_size=loader.batch_size,
            shuffle=self.order != "sequential",
            contract=self.contract,
            **{name: getattr(loader, name) for name in _TAKEN_OVER},
        )

        def epoch(number: int) -> Iterator[Batch]:
            with _ending():
                yield from self._account.epoch("train", number, tallied)

        self._epochs = Epochs(epoch, len(tallied))


@contextmanager
def _ending() -> Iterator[None]:
    try:
        yield
    except Ending as ending:
        raise SystemExit(failure.end(ending)) from None
