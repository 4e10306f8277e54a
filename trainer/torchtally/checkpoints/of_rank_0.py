"""Checkpoints in a folder that rank 0 alone has: it writes them, and all ranks resume from what it broadcasts."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchtally import events
from torchtally.checkpoints import catalog, checkpoint_file, conditions, in_use
from torchtally.checkpoints.collective import new_group, on_rank_0
from torchtally.checkpoints.coordination import Account, Rounds, check
from torchtally.checkpoints.manifest import MANIFEST
from torchtally.checkpoints.objects import Objects
from torchtally.errors import Refused, Volume
from torchtally.log import log
from torchtally.proof import statement

_REACHED = "reached"


class CheckpointsOfRank0(Rounds):
    """Saves and resumes the objects of a loop with its account: `Account.checkpoints` makes it.

    Args:
        account: The loop's account.
        folder: A path on rank 0.
        objects: Models, optimizers, and other objects, which are equal on all ranks.
        every: Seconds between two checkpoints.
        keep: Number of checkpoints that are kept, besides `best`.

    Attributes:
        best: Epoch and position of the checkpoint that is kept besides the newest ones, if any.
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
        own, self._folder, self._keep = Objects(objects), Path(folder), keep
        own.whole()  # which refuses what cannot be saved
        group = new_group()
        on_rank_0(group(), lambda: in_use.hold(self._folder))
        self._saved_at = time.time()
        self._failed = False  # on rank 0
        self._newest: Path | None = None  # that is written, on rank 0
        self.best: tuple[int, int] | None = None
        super().__init__(account, own, str(folder), every, group, None if dist.get_rank() else self._folder / _REACHED)

    @property
    def saved_at(self) -> float:
        """When rank 0 wrote the last one, or else when this was made: seconds since 1970."""
        return self._saved_at

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, path and SHA-256 of the last checkpoint, if it could be written. Raises OSError."""
        return (str(self._newest), statement.sha256_of(self._newest)[1]) if self._newest else None

    def close(self, wait: bool = True) -> None:
        """End: handle signals as before."""
        super().close(wait)
        if dist.get_rank() == 0:
            in_use.release(self._folder)

    def _load_newest(self) -> bool:
        payload = b""  # on rank 0

        def read() -> tuple[int, str]:
            nonlocal payload
            try:
                found = checkpoint_file.newest(self._folder)
            except PermissionError as error:
                raise Refused(str(error)) from None
            except OSError as error:  # a volume may recover
                raise Volume(f"the checkpoints in {self._folder} cannot be read: {error}") from None
            for sentence in found.skipped:
                log.warning(f"skipped {sentence}")
            if found.payload is None:
                there = any(catalog.is_name(each.parent.name) for each in self._folder.glob(f"*/{MANIFEST}"))
                others = "of a folder that all pods share: leave out of_rank_0" if there else None
                self._refuse_to_begin(found.skipped, others)
            payload = found.payload or b""
            return len(payload), str(found.path)

        size, path = on_rank_0(self._group(), read)
        if not size:
            return False
        data = torch.frombuffer(bytearray(payload or bytes(size)), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group())
        try:
            state = checkpoint_file.load(data.numpy().tobytes())
            if other := self._objects.differ(state["kinds"]):
                raise Refused(f"it {other}")
            self._account.load_state_dict(state["account"])
            self._objects.load_whole(state["objects"])
        except Exception as error:  # of what is in it
            what = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            raise Refused(f"the checkpoint {path} cannot be taken up: {what}") from None
        self._account.discarded = state["discarded"]
        self._resumes(path, state["attempt"], *state["reached"])
        return True

    def _write(self) -> None:
        """Write a checkpoint. A failed write is a warning: the former checkpoint remains. A call of all ranks."""
        if problem := self._account.save_problem(self._objects):
            raise Refused(problem)
        objects, source = self._objects.whole(), self._account.source
        values = {f"{model}.{key}": objects[model][key] for model, key in self._objects.compared(objects)}
        if wrong := conditions.unequal(values, self._objects.device, self._group()):
            raise Refused(wrong)
        state = {
            "attempt": source.attempt or 0,
            "reached": list(self._account.reached),
            "discarded": self._account.discarded,
            "account": self._account.position_dict(),
            "objects": objects,
            "kinds": self._objects.kinds,
        }
        if dist.get_rank() == 0:
            events.emit(self._written(state), source)

    def _written(self, state: checkpoint_file.State) -> events.Saved | events.SaveFailed:
        epoch, position, _ = state["reached"]
        began = time.monotonic()
        try:
            best = checkpoint_file.file_name(*self.best) if self.best else None
            self._newest = path = checkpoint_file.save(self._folder, epoch, position, state, self._keep, best)
        except OSError as error:
            self._failed, self._newest = True, None
            log.warning(f"no checkpoint could be written to {self._folder}, the training continues: {error}")
            return events.SaveFailed(epoch=epoch, position=position, cause=str(error))
        if self._failed:
            log.info(f"checkpoints can be written again: {path}")
        self._failed, self._saved_at = False, time.time()
        seconds = round(time.monotonic() - began, 3)
        return events.Saved(path=str(path), epoch=epoch, position=position, seconds=seconds)

    def _end(self) -> None:
        pass

    def _has_failed(self) -> bool:
        failed: bool = on_rank_0(self._group(), lambda: self._failed)
        return failed
