"""Checkpoints of a user's loop: saved between a commit and the next batch, resumed at any number of ranks.

`writer` writes a copy of the state in the background.
"""

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from torchtally.checkpoints import checkpoint_file, in_use
from torchtally.checkpoints.catalog import Catalog
from torchtally.checkpoints.collective import new_group, on_rank_0
from torchtally.checkpoints.coordination import Account, Rounds, check
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.objects import Objects
from torchtally.checkpoints.storage import Storage
from torchtally.checkpoints.writer import Writer, cause_of
from torchtally.errors import Refused, Volume


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
        keep = check(every, keep)
        self._storage, own = Storage(folder), Objects(objects)
        if self._storage.local and Path(self._storage.root).is_file():
            raise Refused(f"checkpoints: {folder} is a file, and must be a folder")
        local = self._storage.local and dist.get_rank() == 0
        self._held = Path(self._storage.root) if local else None
        group = new_group()
        on_rank_0(group(), lambda: in_use.hold(self._held) if self._held else None)
        self._catalog = Catalog(self._storage, group, account.source.pod)
        self._catalog.check_shared()
        self._writer = Writer(self._storage, self._catalog, keep, own.device)
        reached = Path(self._storage.path("reached")) if local else None
        super().__init__(account, own, str(self._storage), every, group, reached)

    @property
    def saved_at(self) -> float:
        """When the last one was written, or else when this was made: seconds since 1970."""
        return self._writer.saved_at

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, URL and SHA-256 of the manifest of the last checkpoint, once it is written and if it could be."""
        self._writer.finish()
        return self._writer.saved

    def close(self, wait: bool = True) -> None:
        """End: handle signals as before, and `wait` for a checkpoint that is being written."""
        super().close(wait)
        self._writer.close(wait)
        if self._held:
            in_use.release(self._held)

    def _load_newest(self) -> bool:
        found = self._catalog.newest()
        if not found:
            there = any(map(checkpoint_file.is_name, on_rank_0(self._group(), self._catalog.names)))
            others = "those of rank 0: pass of_rank_0=True" if there else None
            self._refuse_to_begin(self._catalog.damaged, others)
            return False
        name, manifest = found
        url = self._storage.url(name)
        if other := self._objects.differ(manifest.objects):
            raise Refused(f"the checkpoint {url} {other}")
        try:
            self._account.load_state_dict(manifest.account)
            self._objects.load(self._storage.reader(name), self._group())
        except CheckpointException as error:
            raise Volume(f"the checkpoint {url} cannot be read: {cause_of(error)}") from None
        except Refused as error:
            raise Refused(f"the checkpoint {url} cannot be taken up: {error}") from None
        self._account.discarded = manifest.discarded
        self._resumes(url, manifest.attempt, manifest.epoch, manifest.position, manifest.consumed)
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
