"""Accounts for the samples of a script that has a DistributedSampler: docs/guides/own-script.md shows how.

The contract is DistributedSampler's, so that the loop's mean over ranks means the same: `padded`, or `drop_last` with
drop_last=True. The contract `exact` needs a loss that knows the rows of all ranks, which an Account provides.
"""

import sys
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from torchtally.accounting.account import Account
from torchtally.accounting.collate import Batch
from torchtally.accounting.epochs import Epochs
from torchtally.accounting.sampler import Sampler
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
    """Replaces a DistributedSampler, and proves the samples of the training at the end of each epoch.

    Create one for each run, in a process group that has gloo for CPU tensors. An exception of torchtally becomes
    `SystemExit` with its exit code, after its message is printed.

    Args:
        dataset: The dataset of the DataLoader.
        epochs: Number of epochs of the training.
        shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
        seed: Seed of the order of samples, from 0.
        drop_last: Whether the contract is `drop_last` in place of `padded`.
        task: Name of the run in its logs and proofs (default: the script's name).
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        epochs: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        task: str | None = None,
    ):
        self._account = Account(task=task or Path(sys.argv[0]).stem, plan={"train": epochs}, seed=seed).__enter__()
        super().__init__(len(dataset), seed=seed, shuffle=shuffle, contract="drop_last" if drop_last else "padded")
        self._given: DataLoader[Any] | None = None
        self._epochs = Epochs(lambda epoch: iter(()), 0)

    def tally(self, loader: DataLoader[Any]) -> Epochs:
        """Return the batches of `loader`, whose sampler this is.

        Each `iter()` is the next epoch, whatever the argument of `set_epoch`. A batch counts as consumed when the loop
        asks for the next one.
        """
        if loader is not self._given:
            with _ending():
                self._take_over(loader)
        return self._epochs

    def done(self) -> None:
        """End the training: print the run's last line, or end the program with 3 if an epoch is missing."""
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
