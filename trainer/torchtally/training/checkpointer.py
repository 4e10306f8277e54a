"""Saving, stopping and resuming of all ranks together.

Rank 0 has the folder. About once a second all ranks exchange whether a checkpoint is due and whether any rank has
received a signal to stop, so all save and stop after the same step. At the start rank 0 finds the newest checkpoint and
broadcasts it.
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from torchtally import events, exchange
from torchtally.checkpoints import conditions
from torchtally.checkpoints.reached import Reached
from torchtally.errors import Refused, Stopped, Volume
from torchtally.log import log
from torchtally.proof import statement
from torchtally.training import checkpoint_file
from torchtally.training.checkpoint_file import State
from torchtally.training.train_state import TrainState

_SYNCHRONIZE_SECONDS = 1.0
_REACHED = "reached"
FOLDER = "checkpoints"


def resume(folder: Path, facts: Mapping[str, Any], grows: str | None = None) -> State | None:
    """Return the state of the newest intact checkpoint on every rank, or None. A collective call.

    `grows` names the fact that may be greater than in the checkpoint.

    On rank 0 the state has the file's "path" as well. Rank 0 prints a warning for each skipped file. Raises on every
    rank: Refused for a checkpoint of another training, with both values; Volume if none can be read.
    """
    payload: bytes | None = None
    state: State | None = None
    refused = failed = None
    discarded = 0
    if dist.get_rank() == 0:
        try:
            found = checkpoint_file.newest(folder)
            for sentence in found.skipped:
                log.warning(sentence)
            if payload := found.payload:
                state = checkpoint_file.load(payload) | {"path": str(found.path)}
                if not (refused := conditions.refusal(found.path, state["facts"], facts, "--output", grows)):
                    discarded = Reached(folder / _REACHED).lost_since(state["attempt"], state["consumed"])
                    lost = f"; at least {discarded} samples consumed after it are discarded" if discarded else ""
                    log.info(f"resumes from {found.path}{lost}")
        except (Refused, PermissionError) as error:
            refused = str(error)
        except OSError as error:  # a volume may recover
            failed = f"the checkpoints in {folder} cannot be read: {error}"
        except Exception as error:  # the other ranks wait for the broadcast
            refused = f"the checkpoints in {folder} cannot be taken up: {type(error).__name__}: {error}"
    refused, failed, size, discarded = exchange.broadcast([refused, failed, len(payload or b""), discarded])
    if refused:
        raise Refused(refused)
    if failed:
        raise Volume(failed)
    if not size:
        return None
    data = torch.frombuffer(bytearray(payload or bytes(size)), dtype=torch.uint8)
    dist.broadcast(data, src=0)
    state = state or checkpoint_file.load(data.numpy().tobytes())  # rank 0 has it
    state["discarded"] += discarded
    return state


class Checkpointer:
    """Saves into `folder` of rank 0, and stops. Without a folder it only stops. Making one is a collective call.

    Attributes:
        interval: Seconds between two checkpoints.
        saved_at: On rank 0, when it wrote the last one, or else when it was made: seconds since 1970.
    """

    def __init__(self, folder: Path | None, facts: Mapping[str, Any], keep: int, seconds: float) -> None:
        self._folder, self._keep, self.interval = folder, keep, seconds
        self.saved_at = time.time()
        self._facts = {"facts": dict(facts)}
        self._stop = 0  # the number of the received signal
        self._pace = self._left = 1  # steps between two exchanges, and until the next
        self._synchronized = self._saved = time.monotonic()
        self._reached = Reached(folder / _REACHED) if folder else None
        self._failed = False
        self._newest: Path | None = None  # that is written, on rank 0

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, path and SHA-256 of the last checkpoint, if it could be written. Raises OSError."""
        if self._newest is None:
            return None
        return str(self._newest), statement.sha256_of(self._newest)[1]

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT: they end the run after a step, with a checkpoint."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_stop)

    def after_step(self, train_state: TrainState) -> None:
        """Synchronize if due; save or stop if any rank asks for it. Raises Stopped on every rank."""
        self._left -= 1
        if self._left == 0:
            self._synchronize(train_state)

    def after_epoch(self, train_state: TrainState, last: bool) -> None:
        """Save; stop if any rank asks for it, except after the last epoch. Raises Stopped on every rank."""
        self.save(train_state)
        if not last:
            stop = torch.tensor(self._stop)
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            if stop:
                self._stop_together(train_state, int(stop))

    def save(self, train_state: TrainState) -> None:
        """Save; a collective call. A failed write is a warning: the former checkpoint remains."""
        if self._folder is None:
            return
        saved = train_state.state()  # a collective call, which gathers their tallies
        if dist.get_rank() == 0:
            events.emit(self._write(self._folder, saved), train_state.run.source)
        self._saved = time.monotonic()

    def _write(self, folder: Path, saved: State) -> events.Saved | events.SaveFailed:
        epoch, position = saved["epoch"], saved["position"]
        began = time.monotonic()
        try:
            self._newest = path = checkpoint_file.save(
                folder, epoch, position, saved | self._facts, self._keep, saved["best"]
            )
        except OSError as error:
            self._failed, self._newest = True, None
            log.warning(f"no checkpoint could be written to {folder}, the training continues: {error}")
            return events.SaveFailed(epoch=epoch, position=position, cause=str(error))
        if self._failed:
            log.info(f"checkpoints can be written again: {path}")
        self._failed, self.saved_at = False, time.time()
        seconds = round(time.monotonic() - began, 3)
        return events.Saved(path=str(path), epoch=epoch, position=position, seconds=seconds)

    def _synchronize(self, train_state: TrainState) -> None:
        now = time.monotonic()
        due = self._folder is not None and dist.get_rank() == 0 and now - self._saved >= self.interval
        # Rank 0's clock sets the pace for all.
        spent = max(now - self._synchronized, 1e-6)
        pace = (
            max(1, min(2 * self._pace, round(self._pace * _SYNCHRONIZE_SECONDS / spent))) if dist.get_rank() == 0 else 0
        )
        wishes = torch.tensor([self._stop, due, pace], dtype=torch.int64)
        dist.all_reduce(wishes, dist.ReduceOp.MAX)
        stop, save, pace = wishes.tolist()
        self._record_progress(train_state)
        if stop or save:
            self.save(train_state)
        if stop:
            self._stop_together(train_state, stop)
        self._pace = self._left = pace
        self._synchronized = time.monotonic()

    def _stop_together(self, train_state: TrainState, number: int) -> None:
        # Together, because the first pod that ends makes the others end while rank 0 may still be writing.
        failed = torch.tensor(int(self._failed))
        dist.all_reduce(failed, dist.ReduceOp.MAX)
        stopped = Stopped(number, saved=not failed)
        if dist.get_rank() == 0:
            epoch, position = train_state.epoch, train_state.position
            event = events.Stopped(signal=number, saved=stopped.saved, epoch=epoch, position=position)
            events.emit(event, train_state.run.source)
        raise stopped

    def _record_progress(self, train_state: TrainState) -> None:
        if self._reached and dist.get_rank() == 0:
            self._reached.record(train_state.run.attempt, train_state.consumed)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = number
