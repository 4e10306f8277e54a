"""Checkpoints of a loop, in whatever form: all ranks agree between two steps whether to save one, and whether to stop.

`Checkpoints` and `CheckpointsOfRank0` write and load them.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from torchtally import events
from torchtally.checkpoints import stopping
from torchtally.checkpoints.collective import on_rank_0
from torchtally.checkpoints.objects import Hashes, Objects
from torchtally.checkpoints.progress_marker import Reached
from torchtally.checkpoints.stopping import Stopping
from torchtally.errors import Ending, Refused, whole
from torchtally.log import log
from torchtally.pod import retries


class Account(Protocol):
    """What checkpoints need of an account."""

    discarded: int  # samples known to be lost with restarts

    @property
    def task(self) -> str: ...

    @property
    def anew(self) -> bool:
        """Whether the program has said that a restart without a state begins anew."""

    @property
    def source(self) -> events.Source: ...

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress, position in its order, and samples in the weights over all epochs."""

    def save_problem(self, objects: Objects) -> str | None:
        """What is wrong with a checkpoint of these objects."""

    def position_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def begin_anew(self) -> None:
        """Take note that there is no checkpoint, so the weights are those of a beginning."""


def check(every: object, keep: object) -> int:
    """Return the number of checkpoints that are kept. Raises Refused, also of the seconds between two."""
    if not isinstance(every, int | float) or isinstance(every, bool) or not 0 < every <= 1e9:
        raise Refused(f"checkpoints: every={every!r} must be a number of seconds above 0")
    return whole("checkpoints: keep", keep)


class Rounds(ABC):
    """About once a second, all ranks exchange whether a checkpoint is due and whether any has received a signal.

    So all save and stop after the same commit.

    Args:
        account: The loop's account. Its `commit()` calls `after_commit()`.
        objects: What is saved with it.
        where: The folder, for sentences.
        every: Seconds between two checkpoints.
        group: For calls of the thread that trains.
        reached: The file in which rank 0 notes how far the run is; None on other ranks, and where there is none.

    Attributes:
        interval: Seconds between two checkpoints.
    """

    def __init__(
        self,
        account: Account,
        objects: Objects,
        where: str,
        every: float,
        group: Callable[[], dist.ProcessGroup],
        reached: Path | None,
    ):
        self._account, self._objects, self._where, self.interval, self._group = account, objects, where, every, group
        self._reached = Reached(reached) if reached else None
        self._saved = time.monotonic()
        self._slow = False
        self._resumed_from: events.Resumed | None = None  # on rank 0, until it is reported
        self._resumed = False
        self._failed_to_resume: Exception | None = None  # and may have loaded a part
        self._loaded: Hashes | None = None  # until the first batch
        self._stopping = Stopping()

    @property
    @abstractmethod
    def saved_at(self) -> float:
        """When the last one was written, or else when this was made: seconds since 1970."""

    @property
    @abstractmethod
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, place and SHA-256 of the last checkpoint, if it could be written."""

    def resume(self) -> bool:
        """Load the newest whole checkpoint into the objects and the account. Returns whether there is one.

        Call it on all ranks before the first epoch. Checkpoints that are not whole are skipped with a warning.

        Raises:
            Refused: The checkpoint is of another run, or holds other objects. Or all are damaged, and the account has
                no `anew=True`.
            Volume: The folder cannot be read.
        """
        self._resumed = True
        try:
            found = self._load_newest()
            self._loaded = self._objects.hashes() if found else None
        except Exception as error:
            self._failed_to_resume = error
            raise
        if not found:
            self._account.begin_anew()
        self.tell_resumed()
        return found

    def after_commit(self) -> None:
        """Take note of a commit. The account's `commit()` calls it."""
        self._check_resumed()
        self._loaded = None
        self._stopping.stepped()

    def before_batch(self) -> None:
        """Save if a checkpoint is due, or if a rank has received a signal to stop.

        The account calls it before it hands out a batch: there, the loop is between two steps, and all of its commits
        are made.

        Raises:
            Refused: No object of the checkpoint has what a named optimizer steps.
            Stopped: A rank has received a signal. All ranks raise it.
        """
        if self._loaded:
            loaded, self._loaded = self._loaded, None
            if name := self._objects.replaced(loaded):
                raise Refused(
                    f"checkpoints: {name!r} has changed between resume() and the first batch, so the weights lack what "
                    "the checkpoint has: call resume() after other weights are loaded or made"
                )
        if self._stopping.due:
            self._synchronize()

    def save(self, wait: bool) -> None:
        """Save now, whether or not a checkpoint is due, and `wait` until it is written. A call of all ranks.

        Raises:
            Refused: It is called before `resume()`, or before a phase has a loader or a sampler.
        """
        self._check_resumed()
        self._end()
        self._begin()
        if wait:
            self._end()

    def finish(self) -> None:
        """Wait for a checkpoint that is being written. Raises Refused if the ranks have different weights."""
        if self._failed_to_resume:
            self._check_resumed()
        self._end()

    def close(self, wait: bool = True) -> None:
        """End: handle signals as before, and `wait` for a checkpoint that is being written."""
        self._stopping.close()

    def _check_resumed(self) -> None:
        """Refuse what follows no resume(), or one that has failed, also in a program that has caught its error."""
        if not self._resumed:
            raise Refused("checkpoints: call resume() before the first commit: it continues from a checkpoint if any")
        if isinstance(self._failed_to_resume, Ending):
            raise self._failed_to_resume
        if error := self._failed_to_resume:
            raise Refused(
                "checkpoints: resume() has failed, so the objects can have a part of a checkpoint: "
                f"{type(error).__name__}: {error}"
            )

    @abstractmethod
    def _load_newest(self) -> bool:
        """Load the newest whole checkpoint. Returns whether there is one."""

    @abstractmethod
    def _write(self) -> None:
        """Write a checkpoint, or begin to. A call of all ranks."""

    @property
    def _busy(self) -> bool:
        """Whether one is being written."""
        return False

    @abstractmethod
    def _end(self) -> None:
        """Wait for one that is being written."""

    @abstractmethod
    def _has_failed(self) -> bool:
        """Whether the last one could not be written. A call of all ranks."""

    def _begin(self) -> None:
        self._write()
        self._saved, self._slow = time.monotonic(), False

    def _synchronize(self) -> None:
        rank = dist.get_rank()
        due = rank == 0 and time.monotonic() - self._saved >= self.interval
        stop, asked, waits = self._stopping.exchange(self._group(), due, self._busy)
        self._note_reached()
        if not waits:
            self._end()
        if stop:
            self._stop_together(stop)
        if asked and not waits:
            self._begin()
        elif asked and not self._slow:
            self._slow = True
            if rank == 0:
                log.warning(f"the next checkpoint waits: the last one is still being written to {self._where}")
        self._stopping.go_on()

    def _note_reached(self) -> None:
        if self._reached:
            self._reached.record(self._account.source.attempt or 0, self._account.reached[2])

    def _stop_together(self, number: int) -> None:
        # Together, because the first pod that ends makes the others end while rank 0 may still be writing.
        self.save(wait=True)
        stopping.stop(number, self._stopping.rank, not self._has_failed(), self._account.source, self._account.reached)

    def _refuse_to_begin(self, damaged: list[str], others: str | None) -> None:
        """Refuse to begin anew where checkpoints were written, unless the program has said that it may.

        Args:
            damaged: What is wrong with each of those that cannot be taken up.
            others: What those of another form are, and how to take them up, if there are any.
        """
        if self._account.anew:
            return
        if damaged:
            raise Refused(
                f"no checkpoint in {self._where} can be taken up: restore one, or delete them to begin anew; "
                + "; ".join(damaged)
            )
        if others:
            raise Refused(f"the checkpoints in {self._where} are {others}, or choose another folder")

    def _resumes(self, path: str, attempt: int, epoch: int, position: int, consumed: int) -> None:
        """Take note of a loaded checkpoint of an `attempt`, and of what is lost after it. A call of all ranks."""
        reached = self._reached
        lost: int = on_rank_0(self._group(), lambda: reached.lost_since(attempt, consumed) if reached else 0)
        self._account.discarded += lost
        if dist.get_rank() == 0:
            samples = f"; at least {lost} samples consumed after it are discarded" if lost else ""
            log.info(f"resumes from {path}{samples}")
            self._resumed_from = events.Resumed(
                task=self._account.task,
                world=dist.get_world_size(),
                checkpoint=path,
                epoch=epoch,
                position=position,
                discarded=self._account.discarded,
            )

    def tell_resumed(self) -> None:
        """Report, once, that this start continues from a checkpoint."""
        resumed, self._resumed_from = self._resumed_from, None
        if resumed:
            events.emit(resumed, self._account.source)
            retries.resumed(resumed, self._account.source)
