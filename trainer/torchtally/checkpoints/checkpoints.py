"""Checkpoints of a user's own loop: saved between a commit and the next batch, resumed at any number of ranks.

`writer` writes a copy of the state in the background.
"""

import os
import signal
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from torchtally.checkpoints import in_use
from torchtally.checkpoints.catalog import Catalog
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.objects import Hashes, Objects
from torchtally.checkpoints.rounds import Account, Rounds
from torchtally.checkpoints.storage import Storage
from torchtally.checkpoints.together import new_group, on_rank_0
from torchtally.checkpoints.writer import Writer, cause_of
from torchtally.errors import Ending, Refused, Volume


class Checkpoints(Rounds):
    """Saves and resumes the objects of a loop with its account: `Account.checkpoints` makes it.

    Args:
        account: The loop's account. Its `commit()` calls `after_commit()`.
        folder: A path that all pods share, or a URL of an object store.
        objects: Models, optimizers, and other objects that have `state_dict()` and `load_state_dict()`.
        every: Seconds between two checkpoints.
        keep: Number of checkpoints that are kept.
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
        if type(keep) is not int or keep < 1:
            raise Refused(f"checkpoints: keep={keep!r} must be a whole number from 1")
        self._objects, self._storage = Objects(objects), Storage(folder)
        if self._storage.local and Path(self._storage.root).is_file():
            raise Refused(f"checkpoints: {folder} is a file, and must be a folder")
        local = self._storage.local and dist.get_rank() == 0
        self._held = Path(self._storage.root) if local else None
        group = new_group()
        on_rank_0(group, lambda: in_use.hold(self._held) if self._held else None)
        self._catalog = Catalog(self._storage, group, account.source.pod)
        self._catalog.check_shared()
        self._writer = Writer(self._storage, self._catalog, keep, self._objects.device)
        reached = Path(self._storage.path("reached")) if local else None
        super().__init__(account, str(self._storage), every, group, reached)
        self._resumed = False
        self._failed: Exception | None = None  # of resume(), which may have loaded a part
        self._loaded: Hashes | None = None  # until the first batch

    @property
    def saved_at(self) -> float:
        """When the last one was written, or else when this was made: seconds since 1970."""
        return self._writer.saved_at

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
            return found
        except Exception as error:
            self._failed = error
            raise

    def after_commit(self) -> None:
        """Take note of a commit. The account's `commit()` calls it."""
        self._check_resumed()
        self._loaded = None
        super().after_commit()

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
        super().before_batch()

    def save(self, wait: bool) -> None:
        """Save now, whether or not a checkpoint is due, and `wait` until it is written. A call of all ranks.

        Raises:
            Refused: It is called before `resume()`, or before a phase has a loader or a sampler.
        """
        self._check_resumed()
        super().save(wait)

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
            self._refuse_damaged(self._catalog.damaged)
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
        self._account.discarded = manifest.discarded
        self._resumes(url, manifest.attempt, manifest.epoch, manifest.position, manifest.consumed)
        self.tell_resumed()
        return True

    @property
    def _busy(self) -> bool:
        return self._writer.busy

    def _end(self) -> None:
        self._writer.finish()

    def _has_failed(self) -> bool:
        return self._writer.failed

    def _write(self) -> None:
        """Copy the state, and begin to write the copy. A call of all ranks."""
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
