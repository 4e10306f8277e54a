"""Accounts for the samples of a script that has a DistributedSampler: docs/guides/own-script.md shows how.

The contract is DistributedSampler's, so that the loop's mean over ranks means the same: `padded`, or `drop_last` with
drop_last=True. The contract `exact` needs a loss that knows the rows of all ranks, which an Account provides.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from torchtally.accounting.account import Account
from torchtally.accounting.collate import Batch
from torchtally.accounting.loader import Loader
from torchtally.accounting.locality import Locality
from torchtally.accounting.sampler import Sampler
from torchtally.errors import Ending, Refused
from torchtally.pod import failure

TAKEN_OVER = (
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

    Create one for each run, in a process group. An exception of torchtally becomes `SystemExit` with its exit code,
    after its message is printed.

    Args:
        dataset: The dataset of the DataLoader.
        epochs: Number of epochs of the training.
        shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
        seed: Seed of the order of samples, from 0.
        drop_last: Whether the contract is `drop_last` in place of `padded`.
        task: Name of the run in its logs and proofs (default: the script's name).
        group: The ranks that share the samples (default: all), as in `Account`.
        anew: Whether a restart that loads no state begins anew, as in `Account`.
        order: An order for data in shard files, as in `Account`.
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
        group: dist.ProcessGroup | None = None,
        anew: bool = False,
        order: Locality | None = None,
    ):
        self._account = Account(
            task=task or Path(sys.argv[0]).stem, plan={"train": epochs}, seed=seed, group=group, anew=anew, order=order
        ).__enter__()
        with self._ending():
            super().__init__(
                len(dataset),
                seed=seed,
                shuffle=shuffle,
                order=order and order.offered(dataset),
                contract="drop_last" if drop_last else "padded",
                rank=self._account.rank,
                world=self._account.world,
            )
        self._given: DataLoader[Any] | None = None
        self._epochs: Loader | None = None
        self._told: int | None = None  # the argument of set_epoch, until that epoch begins

    @property
    def completed(self) -> int:
        """Number of completed epochs, over all starts of the run: the epoch that a resume begins with, counted from 0.

        If a state was saved in an epoch's batch loop, after the last commit, a resume begins with that epoch: it has no
        batch left, and the rest of its body runs.
        """
        unfinished = self._account.unfinished
        return self._account.completed("train") if unfinished is None else unfinished - 1

    def set_epoch(self, epoch: int) -> None:
        """State which epoch comes next, counted from 0: after a resume, `completed`."""
        self._told = epoch

    def tally(self, loader: DataLoader[Any]) -> Loader:
        """Return the batches of `loader`, whose sampler this is: each `iter()` is the next epoch."""
        with self._ending():
            if self._epochs is None or loader is not self._given:
                self._epochs = self._take_over(loader)
        return self._epochs

    def commit(self) -> None:
        """Count the batches that were handed out: call it after each `optimizer.step()`, as `Account.commit`."""
        with self._ending():
            self._account.commit()

    def skip(self, reason: str) -> None:
        """Count the last batch, or all of its step, as dropped: the weights do not have it, as `Account.skip`."""
        with self._ending():
            self._account.skip(reason)

    def log(self, **numbers: float | Tensor) -> None:
        """Report numbers of rank 0, such as `sampler.log(loss=loss)`, as `Account.log`."""
        with self._ending():
            self._account.log(**numbers)

    def state_dict(self) -> dict[str, str]:
        """Return how far the run is, the same on every rank: save it with the weights of the same moment."""
        with self._ending():
            return self._account.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, at any number of ranks: call it before the first epoch."""
        with self._ending():
            self._account.load_state_dict(state)

    def done(self) -> None:
        """End the training: print the run's last line, or end the program with 3 if an epoch is missing."""
        if self._epochs:
            self._epochs.end()
        self._account.__exit__(None, None, None)

    def write_proof(self, path: str | os.PathLike[str], *files: str | os.PathLike[str]) -> None:
        """Write the run's proof as a statement about these files, after `done()`: `Account.write_proof`."""
        self._account.write_proof(path, *files)

    def _take_over(self, loader: DataLoader[Any]) -> Loader:
        """Make a loader whose batches carry their indices, from one whose batches do not."""
        if self._given is not None:
            raise Refused("tally() must receive the same DataLoader in every epoch; an Account takes several")
        if loader.sampler is not self:
            raise Refused(f"the DataLoader's sampler must be the TalliedSampler, not a {type(loader.sampler).__name__}")
        if loader.batch_size is None or loader.drop_last:
            raise Refused("the DataLoader must have a batch_size and drop_last=False: pass drop_last to TalliedSampler")
        if (n := len(loader.dataset)) != self.n:  # type: ignore[arg-type]  # PyTorch's Dataset does not promise a length
            raise Refused(f"the DataLoader's dataset has {n} samples, and that of its TalliedSampler {self.n}")
        self._given = loader
        tallied = self._account.loader(
            loader.dataset,
            batch_size=loader.batch_size,
            shuffle=self.order != "sequential",
            contract=self.contract,
            **{name: getattr(loader, name) for name in TAKEN_OVER},
        )

        def epoch() -> Iterator[Batch]:
            with self._ending():
                self._account.settle("train")
                yield from self._account.epoch("train", self._next() + 1, tallied)

        # A loop that has left an epoch is no longer in it: a state that is made then goes on behind it.
        return Loader(self._account, "train", tallied.given, epoch, len(tallied), holds=False)

    def _next(self) -> int:
        """The next epoch, counted from 0.

        Raises Refused unless set_epoch has announced it: a loop that goes on elsewhere has not loaded the state.
        """
        told, self._told = self._told, None
        # A library that drives the loop may begin with the epoch after a complete one.
        if told is None or told not in (self.completed, self._account.completed("train")):
            called = "was not called" if told is None else f"has received {told}"
            raise Refused(
                f"set_epoch() {called}, and the next epoch is {self.completed}, counted from 0: call it before each "
                "epoch; after a restart, load the state of the checkpoint first"
            )
        return told

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Ending as ending:
            raise SystemExit(failure.end(ending)) from None
