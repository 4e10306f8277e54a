"""Saving, stopping and resuming, which all ranks do together.

Rank 0 has the folder. Everybody meets now and then, a second apart, and learns whether rank 0 wants to save and whether
anybody was asked to stop; so all save after the same step, and leave after it. At the start rank 0 finds the newest
checkpoint and hands it to all.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from torchtally import events
from torchtally.errors import Refused, Stopped, Volume
from torchtally.training import checkpoint_file
from torchtally.training.checkpoint_file import State
from torchtally.training.train_state import TrainState

_MEETING_SECONDS = 1.0
_REACHED = "reached"
FOLDER = "checkpoints"


def resume(folder: Path, facts: Mapping[str, Any], device: torch.device) -> State | None:
    """The newest whole checkpoint's state on every rank, or None if there is none. A collective call.

    The state on rank 0 has the file's "path", too. Rank 0 says what was skipped, and what differs so that the last bits
    of the weights will. On every rank, raises Refused for a checkpoint of another training, with both values, and
    Volume where they cannot be read.
    """
    payload: bytes | None = None
    state: State | None = None
    refused = failed = None
    discarded = 0
    if dist.get_rank() == 0:
        try:
            found = checkpoint_file.newest(folder)
            for sentence in found.skipped:
                _say(sentence)
            if payload := found.payload:
                state = checkpoint_file.load(payload) | {"path": str(found.path)}
                if not (refused := _refusal(found.path, state["facts"], facts)):
                    discarded = _since(folder, state)
                    lost = f"; at least {discarded} samples consumed after it are discarded" if discarded else ""
                    _say(f"took up {found.path}{lost}")
                    _say_what_differs(found.path, state, device)
        except (Refused, PermissionError) as error:
            refused = str(error)
        except OSError as error:  # a volume may be well again in a while
            failed = f"the checkpoints in {folder} cannot be read: {error}"
        except Exception as error:  # whatever it is, the other ranks wait
            refused = f"the checkpoints in {folder} cannot be taken up: {type(error).__name__}: {error}"
    head: list[Any] = [refused, failed, len(payload or b""), discarded]
    dist.broadcast_object_list(head, src=0)
    refused, failed, size, discarded = head
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


def numerics(device: torch.device) -> dict[str, Any]:
    """What has to be the same for the same weights, bit for bit, beside the number of ranks."""
    return {
        "PyTorch": str(torch.__version__),  # a class of its own, which a checkpoint may not hold
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


class Checkpointer:
    """Saves into `folder`, which is rank 0's, and stops. Without a folder it only stops."""

    def __init__(
        self, folder: Path | None, facts: Mapping[str, Any], device: torch.device, keep: int, seconds: float
    ) -> None:
        self._folder, self._keep, self._seconds = folder, keep, seconds
        self._facts = {"facts": dict(facts), "numerics": numerics(device)}
        self._stop = 0  # the signal that asked for it
        self._pace = self._left = 1  # steps between two meetings, and until the next
        self._met = self._saved = time.monotonic()
        self._mark: int | None = None  # the file of _note, open
        self._failed = False

    def listen(self) -> None:
        """From here on SIGTERM, or Ctrl-C, ends the run after a step, with a checkpoint."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_stop)

    def after_step(self, train_state: TrainState) -> None:
        """Meet, if it is time to; save or stop if anybody wants to. Raises Stopped on every rank."""
        self._left -= 1
        if self._left == 0:
            self._meet(train_state)

    def after_epoch(self, train_state: TrainState, last: bool) -> None:
        """Save, and stop if anybody wants to and there is more to do. Raises Stopped on every rank."""
        self.save(train_state)
        if not last:
            stop = torch.tensor(self._stop)
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            if stop:
                self._leave(train_state, int(stop))

    def save(self, train_state: TrainState) -> None:
        """Save; a collective call. What cannot be written is said, and the training goes on: the last one is there."""
        if self._folder is None:
            return
        whole = train_state.state()  # on all ranks: it gathers their tallies
        if dist.get_rank() == 0:
            events.emit(self._write(self._folder, whole), train_state.run.source)
        self._saved = time.monotonic()

    def _write(self, folder: Path, whole: State) -> events.Saved | events.SaveFailed:
        epoch, position = whole["epoch"], whole["position"]
        began = time.monotonic()
        try:
            path = checkpoint_file.save(folder, epoch, position, whole | self._facts, self._keep, whole["best"])
        except OSError as error:
            self._failed = True
            _say(f"no checkpoint could be written to {folder}, the training goes on without: {error}")
            return events.SaveFailed(epoch=epoch, position=position, cause=str(error))
        if self._failed:
            _say(f"checkpoints can be written again: {path}")
        self._failed = False
        seconds = round(time.monotonic() - began, 3)
        return events.Saved(path=str(path), epoch=epoch, position=position, seconds=seconds)

    def _meet(self, train_state: TrainState) -> None:
        now = time.monotonic()
        due = self._folder is not None and dist.get_rank() == 0 and now - self._saved >= self._seconds
        # Rank 0's clock sets the pace for all.
        spent = max(now - self._met, 1e-6)
        pace = max(1, min(2 * self._pace, round(self._pace * _MEETING_SECONDS / spent))) if dist.get_rank() == 0 else 0
        wishes = torch.tensor([self._stop, due, pace], dtype=torch.int64)
        dist.all_reduce(wishes, dist.ReduceOp.MAX)
        stop, save, pace = wishes.tolist()
        self._note(train_state)
        if stop or save:
            self.save(train_state)
        if stop:
            self._leave(train_state, stop)
        self._pace = self._left = pace
        self._met = time.monotonic()

    def _leave(self, train_state: TrainState, number: int) -> None:
        # Together: a pod that leaves makes the others end soon, and rank 0 may still be writing.
        failed = torch.tensor(int(self._failed))
        dist.all_reduce(failed, dist.ReduceOp.MAX)
        stopped = Stopped(number, saved=not failed)
        if dist.get_rank() == 0:
            epoch, position = train_state.epoch, train_state.position
            event = events.Stopped(signal=number, saved=stopped.saved, epoch=epoch, position=position)
            events.emit(event, train_state.run.source)
        raise stopped

    def _note(self, train_state: TrainState) -> None:
        """Leave word of how far the training is, to tell after a crash how much was lost.

        Into the page cache, which outlives the process and waits for no disk.
        """
        if self._folder is not None and dist.get_rank() == 0:
            with contextlib.suppress(OSError):
                if self._mark is None:
                    self._mark = os.open(self._folder / _REACHED, os.O_WRONLY | os.O_CREAT, 0o644)
                os.pwrite(self._mark, b"%10d %20d\n" % (train_state.run.attempt, train_state.consumed), 0)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = number


def _since(folder: Path, state: State) -> int:
    """How many samples are known to have been consumed after the checkpoint was made."""
    try:
        attempt, consumed = map(int, (folder / _REACHED).read_text().split())
    except (OSError, ValueError):
        return 0
    # What an earlier attempt has reached was discarded, and counted, before.
    return max(0, consumed - state["consumed"]) if attempt >= state["attempt"] else 0


def _refusal(path: Path | None, saved: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    for name, value in facts.items():
        if saved.get(name) != value:
            return (
                f"the checkpoint {path} is of another training: its {name} is {json.dumps(saved.get(name))} and now it "
                f"is {json.dumps(value)}; go on as before, or choose another --output"
            )
    return None


def _say_what_differs(path: Path | None, state: State, device: torch.device) -> None:
    now = numerics(device) | {"ranks": dist.get_world_size()}
    before = state["numerics"] | {"ranks": len(state["ranks"])}
    other = [f"{name} {before.get(name)} and now {value}" for name, value in now.items() if before.get(name) != value]
    if other:
        _say(f"{path} was made with {', '.join(other)}: every sample counts once, but the last bits will differ")


def _say(text: str) -> None:
    print(f"torchtally: {text}", file=sys.stderr, flush=True)
