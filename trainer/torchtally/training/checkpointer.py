"""Checkpoints in a folder that rank 0 alone has: it writes them, and all ranks resume from what it broadcasts."""

import time
from pathlib import Path

import torch
import torch.distributed as dist

from torchtally import events
from torchtally.checkpoints.rounds import Rounds
from torchtally.checkpoints.together import on_rank_0
from torchtally.distributed import own_group
from torchtally.errors import Refused, Volume
from torchtally.log import log
from torchtally.proof import statement
from torchtally.training import checkpoint_file
from torchtally.training.checkpoint_file import State
from torchtally.training.train_state import TrainState

_REACHED = "reached"
FOLDER = "checkpoints"


class Checkpointer(Rounds):
    """Saves a training into `folder` of rank 0. Making one is a collective call.

    Args:
        train_state: The training.
        folder: Where to.
        keep: Number of checkpoints to keep, besides that of the best epoch.
        every: Seconds between two.
    """

    def __init__(self, train_state: TrainState, folder: Path, *, keep: int, every: float) -> None:
        reached = None if dist.get_rank() else folder / _REACHED
        super().__init__(train_state, str(folder), every, own_group.of_all(), reached)
        self._train_state, self._folder, self._keep = train_state, folder, keep
        self._saved_at = time.time()
        self._failed = False  # on rank 0
        self._newest: Path | None = None  # that is written, on rank 0

    @property
    def saved_at(self) -> float:
        """When rank 0 wrote the last one, or else when this was made: seconds since 1970."""
        return self._saved_at

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, path and SHA-256 of the last checkpoint, if it could be written. Raises OSError."""
        if self._newest is None:
            return None
        return str(self._newest), statement.sha256_of(self._newest)[1]

    def resume(self) -> bool:
        """Go on from the newest intact checkpoint. Returns whether there is one. A collective call.

        Rank 0 prints a warning for each skipped file. Raises on every rank: Refused for a checkpoint of another
        training, with both values, and if all are damaged; Volume if none can be read.
        """
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
                self._refuse_damaged(found.skipped)
            payload = found.payload or b""
            return len(payload), str(found.path)

        size, path = on_rank_0(self._group, read)
        if not size:
            return False
        data = torch.frombuffer(bytearray(payload or bytes(size)), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        try:
            state = checkpoint_file.load(data.numpy().tobytes())
            self._train_state.load_state_dict(state)
            self._train_state.model.load_state_dict(state["model"])
            self._train_state.optimizer.load_state_dict(state["optimizer"])
        except Refused:
            raise
        except Exception as error:  # of what is in it
            raise Refused(f"the checkpoint {path} cannot be taken up: {type(error).__name__}: {error}") from None
        self._resumes(path, self._train_state.run.attempt - 1, *self._train_state.reached)
        return True

    def _write(self) -> None:
        """Write a checkpoint. A failed write is a warning: the former checkpoint remains. A collective call."""
        train_state = self._train_state
        state = {"model": train_state.model.state_dict(), "optimizer": train_state.optimizer.state_dict()}
        state |= train_state.position_dict()
        if dist.get_rank() == 0:
            events.emit(self._written(state), train_state.source)

    def _written(self, state: State) -> events.Saved | events.SaveFailed:
        (epoch, position, _), best = self._train_state.reached, self._train_state.best
        began = time.monotonic()
        try:
            kept = checkpoint_file.file_name(best.epoch + 1, 0) if best else None
            self._newest = path = checkpoint_file.save(self._folder, epoch, position, state, self._keep, kept)
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
        failed: bool = on_rank_0(self._group, lambda: self._failed)
        return failed
