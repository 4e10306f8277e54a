"""For a script that has a DistributedSampler and a DataLoader: three other lines, and its training is proved.

    sampler = TalliedSampler(dataset, epochs=10)                # was DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for inputs, labels in sampler.tally(loader):            # was loader
            ...
    sampler.done()                                              # is new

The contract is DistributedSampler's, so that the loop's mean over ranks means what it did: `padded`, where the first
samples are repeated until all ranks have as many, or with drop_last=True `drop_last`. Every sample exactly once, where
the ranks do not divide them, needs a loss that knows how many rows all ranks have: an Account tells it, and takes
several phases (see account.py).

`sampler.tally(loader)` may be given to a library that drives the loop itself, if that leaves the loader as it is.
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
    """Takes a DistributedSampler's place in the training of `epochs` epochs. One a run; needs gloo for CPU tensors.

    It ends the program with a sentence and the exit codes of errors.py.
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
        """The batches of `loader`, whose sampler this is, each counted when the loop comes back for the next one.

        Each iter() is the next epoch, whatever `set_epoch` has said.
        """
        if loader is not self._given:
            with _ending():
                self._take_over(loader)
        return self._epochs

    def done(self) -> None:
        """The training has ended: prints the run's last line, or ends the program with 3 where an epoch is missing."""
        self._epochs.end()
        self._account.__exit__(None, None, None)

    def _take_over(self, loader: DataLoader[Any]) -> None:
        """Make a loader whose batches carry their indices of one whose batches do not."""
        if self._given is not None:
            raise Refused("tally() must be given the same DataLoader in every epoch: an Account takes several")
        if loader.sampler is not self:
            raise Refused(f"the DataLoader's sampler must be the TalliedSampler, not a {type(loader.sampler).__name__}")
        if loader.batch_size is None or loader.drop_last:
            raise Refused("the DataLoader must make whole batches itself and drop none: drop_last is TalliedSampler's")
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
