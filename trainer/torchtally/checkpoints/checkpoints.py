"""Checkpoints of a user's own loop: saved between a commit and the next batch, resumed at any number of ranks.

About once a second all ranks exchange whether a checkpoint is due and whether any of them has received a signal to
stop, so all save and stop after the same commit. `writer` writes a copy of the state in the background.
"""

import os
import signal
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from torchtally import events
from torchtally.checkpoints import in_use
from torchtally.checkpoints.catalog import Catalog
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.objects import Hashes, Objects
from torchtally.checkpoints.reached import Reached
from torchtally.checkpoints.storage import Storage
from torchtally.checkpoints.together import new_group, on_rank_0
from torchtally.checkpoints.writer import Writer, cause_of
from torchtally.errors import Ending, Refused, Stopped, Volume
from torchtally.log import log
from torchtally.pod import retries

_SYNCHRONIZE_SECONDS = 1.0


class Account(Protocol):
    """What Checkpoints need of an account."""

    discarded: int  # samples known to be lost with restarts

    @property
    def task(self) -> str: ...

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


class Checkpoints:
    """Saves and resumes the objects of a loop with its account: `Account.checkpoints` makes it.

    Args:
        account: The loop's account. Its `commit()` calls `after_commit()`.
        folder: A path that all pods share, or a URL of an object store.
        objects: Models, optimizers, and other objects that have `state_dict()` and `load_state_dict()`.
        every: Seconds between two checkpoints.
        keep: Number of checkpoints that are kept.

    Attributes:
        interval: Seconds between two checkpoints.
    """

    def __init__(
        self,
        account: Account,
        folder: str | os.PathLike[str],
        objects: Mapping[str, Any],
        *,
        every: float = 300,
        keep: int = 2,
    ):
        if not isinstance(every, int | float) or isinstance(every, bool) or not 0 < every <= 1e9:
            raise Refused(f"checkpoints: every={every!r} must be a number of seconds above 0")
        self._account, self.interval = account, every
        if type(keep) is not int or keep < 1:
            raise Refused(f"checkpoints: keep={keep!r} must be a whole number from 1")
        self._objects, self._storage = Objects(objects), Storage(folder)
        if self._storage.local and Path(self._storage.root).is_file():
            raise Refused(f"checkpoints: {folder} is a file, and must be a folder")
        self._group = new_group()
        local = self._storage.local and dist.get_rank() == 0
        self._held = Path(self._storage.root) if local else None
        on_rank_0(self._group, lambda: in_use.hold(self._held) if self._held else None)
        self._catalog = Catalog(self._storage, self._group, account.source.pod)
        self._catalog.check_shared()
        self._reached = Reached(Path(self._storage.path("reached"))) if local else None
        self._writer = Writer(self._storage, self._catalog, keep, self._objects.device)
        self._stop = 0  # the number of the received signal
        self._pace = self._left = 1  # commits between two exchanges, and until the next
        self._synchronized = self._saved = time.monotonic()
        self._resumed = self._slow = False
        self._failed: Exception | None = None  # of resume(), which may have loaded a part
        self._loaded: Hashes | None = None  # until the first batch
        self._handlers = {each: signal.signal(each, self._asked_to_stop) for each in (signal.SIGTERM, signal.SIGINT)}

    @property
    def saved_at(self) -> float:
        """When the last one was written, or else when this was made: seconds since 1970."""
        return self._writer.saved_at

    def resume(self) -> bool:
        """Load the newest whole checkpoint into the objects and the account. Returns whether there is one.

        Call it on all ranks before the first epoch. Checkpoints that are not whole are skipped with a warning.

        Raises:
            Refused: The checkpoint is of another run, or holds other objects.
            Volume: The folder cannot be read.
        """
        self._resumed = True
        try:
            found = self._load_newest()
            self._loaded = self._objects.hashes() if found else None
            return found
        except Exception as error:
            self._failed = error
            raise

    def after_commit(self) -> None:
        """Take note of a commit. The account's `commit()` calls it."""
        self._check_resumed()
        self._loaded = None
        self._left -= 1

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
        if self._left <= 0:
            self._synchronize()

    def save(self, wait: bool) -> None:
        """Save now, whether or not a checkpoint is due, and `wait` until it is written. A call of all ranks.

        Raises:
            Refused: It is called before `resume()`, or before a phase has a loader or a sampler.
        """
        self._check_resumed()
        self._writer.finish()
        self._begin()
        if wait:
            self._writer.finish()

    def heed_signals(self) -> None:
        """Stop if a rank has received a signal. A call of all ranks. Raises Stopped."""
        self._synchronize()

    def finish(self) -> None:
        """Wait for a checkpoint that is being written. Raises Refused if the ranks have different weights."""
        if self._failed:
            self._check_resumed()
        self._writer.finish()

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, URL and SHA-256 of the manifest of the last checkpoint, once it is written and if it could be."""
        self._writer.finish()
        return self._writer.saved

    def close(self, wait: bool = True) -> None:
        """End: handle signals as before, and `wait` for a checkpoint that is being written."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._writer.close(wait)
        if self._held:
            in_use.release(self._held)

    def _check_resumed(self) -> None:
        """Refuse what follows no resume(), or one that has failed, also in a program that has caught its error."""
        if not self._resumed:
            raise Refused("checkpoints: call resume() before the first commit: it continues from a checkpoint if any")
        if isinstance(self._failed, Ending):
            raise self._failed
        if self._failed:
            raise Refused(
                f"checkpoints: resume() has failed, so the objects can have a part of a checkpoint: "
                f"{type(self._failed).__name__}: {self._failed}"
            )

    def _load_newest(self) -> bool:
        found = self._catalog.newest()
        if not found:
            self._account.begin_anew()
            return False
        name, manifest = found
        url = self._storage.url(name)
        if manifest.objects != self._objects.kinds:
            raise Refused(f"the checkpoint {url} holds {manifest.objects} and the objects are {self._objects.kinds}")
        self._account.load_state_dict(manifest.account)
        try:
            self._objects.load(self._storage.reader(name), self._group)
        except CheckpointException as error:
            raise Volume(f"the checkpoint {url} cannot be read: {cause_of(error)}") from None
        except Refused as error:
            raise Refused(f"the checkpoint {url} cannot be taken up: {error}") from None
        lost = on_rank_0(self._group, lambda: self._lost_since(manifest))
        self._account.discarded = manifest.discarded + lost
        if dist.get_rank() == 0:
            samples = f"; at least {lost} samples consumed after it are discarded" if lost else ""
            log.info(f"resumes from {url}{samples}")
            resumed = events.Resumed(
                task=self._account.task,
                world=dist.get_world_size(),
                checkpoint=url,
                epoch=manifest.epoch,
                position=manifest.position,
                discarded=self._account.discarded,
            )
            events.emit(resumed, self._account.source)
            retries.resumed(resumed, self._account.source)
        return True

    def _synchronize(self) -> None:
        now, rank = time.monotonic(), dist.get_rank()
        busy = self._writer.busy
        due = rank == 0 and now - self._saved >= self.interval
        # Rank 0's clock sets the pace for all.
        spent = max(now - self._synchronized, 1e-6)
        pace = max(1, min(2 * self._pace, round(self._pace * _SYNCHRONIZE_SECONDS / spent))) if rank == 0 else 0
        wishes = torch.tensor([self._stop, due, pace, busy], dtype=torch.int64)
        dist.all_reduce(wishes, dist.ReduceOp.MAX, self._group)
        stop, asked, pace, waits = wishes.tolist()
        self._record_progress()
        if not waits:
            self._writer.finish()
        if stop:
            self._stop_together(stop)
        if asked and not waits:
            self._begin()
        elif asked and not self._slow:
            self._slow = True
            if rank == 0:
                log.warning(f"the next checkpoint waits: the last one is still being written to {self._storage}")
        self._pace = self._left = pace
        self._synchronized = time.monotonic()

    def _begin(self) -> None:
        """Copy the state, and begin to write the copy."""
        self._saved, self._slow = time.monotonic(), False
        if problem := self._account.save_problem(self._objects):
            raise Refused(problem)
        state = self._objects.state(whole=dist.get_rank() == 0)
        epoch, position, consumed = self._account.reached
        source = self._account.source
        manifest = Manifest(
            torchtally=version("torchtally"),
            torch=str(torch.__version__),
            run=str(source.run),
            attempt=source.attempt or 0,
            epoch=epoch,
            position=position,
            consumed=consumed,
            discarded=self._account.discarded,
            world=dist.get_world_size(),
            objects=self._objects.kinds,
            account=self._account.position_dict(),
            files={},
        )
        self._writer.begin(state, self._objects.compared(state), manifest, source)

    def _stop_together(self, number: int) -> None:
        self._writer.finish()
        self._begin()
        self._writer.finish()
        stopped = Stopped(number, saved=not self._writer.failed)
        if dist.get_rank() == 0:
            epoch, position, _ = self._account.reached
            event = events.Stopped(signal=number, saved=stopped.saved, epoch=epoch, position=position)
            events.emit(event, self._account.source)
        raise stopped

    def _record_progress(self) -> None:
        if self._reached:
            self._reached.record(self._account.source.attempt or 0, self._account.reached[2])

    def _lost_since(self, manifest: Manifest) -> int:
        return self._reached.lost_since(manifest.attempt, manifest.consumed) if self._reached else 0

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = number
