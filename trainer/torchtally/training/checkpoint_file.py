"""Checkpoints on disk: each is a file that is whole or is skipped; the newest few and the best one are kept.

A file is what torch.save writes, followed by the SHA-256 of that and a mark. Its name says how far the training was.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchtally.atomic_file import replace
from torchtally.errors import Refused

State = dict[str, Any]  # what torch.load(weights_only=True) takes: tensors, numbers, text, lists, dictionaries

_ANY_MARK = b"torchtally-checkpoint-"
_MARK = _ANY_MARK + b"2\n"
_TAIL = hashlib.sha256().digest_size + len(_MARK)
SUFFIX = ".checkpoint"
_NAME = re.compile(r"epoch-(\d{8})-position-(\d{19})\.checkpoint")


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, if there is one, and a sentence for each newer file that was skipped."""

    payload: bytes | None
    path: Path | None
    skipped: list[str]


def save(folder: Path, epoch: int, position: int, state: State, keep: int, best: str | None = None) -> Path:
    """Write `state`, then delete all older checkpoints but the `keep` newest, with this one, and the one named `best`.

    Raises OSError. What is newer was skipped when the training was taken up, and is left alone.
    """
    payload = saved(state)
    folder.mkdir(parents=True, exist_ok=True)
    path = replace(folder / name(epoch, position), payload + hashlib.sha256(payload).digest() + _MARK)
    older = [each for each in _all(folder) if each.name < path.name]
    for each in older[keep - 1 :]:
        if each.name != best:
            each.unlink(missing_ok=True)
    return path


def saved(state: State) -> bytes:
    """What torch.save makes of `state`; to a file on a full disk it would write half of it and raise RuntimeError."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def name(epoch: int, position: int) -> str:
    """The file name of a checkpoint, made after `position` samples of `epoch`; names sort as the training goes."""
    return f"epoch-{epoch:08d}-position-{position:019d}{SUFFIX}"


def newest(folder: Path, clear: bool = True) -> Found:
    """Find the newest checkpoint that is whole, and `clear` away what a killed process left half written.

    Raises OSError where the folder is there and cannot be read, and Refused for a checkpoint in another version's form.
    """
    skipped: list[str] = []
    for path in _all(folder):
        try:
            payload, wrong = whole(path, path.read_bytes())
        except FileNotFoundError:
            continue  # the master that this one replaces may still be ending
        if payload is not None:
            for half in folder.glob(".*.checkpoint.*") if clear else ():
                half.unlink(missing_ok=True)
            return Found(payload, path, skipped)
        skipped.append(f"skipped checkpoint {path}: it is {wrong}")
    return Found(None, None, skipped)


def whole(path: Path, data: bytes) -> tuple[bytes | None, str]:
    """What was saved to `path`, which holds `data`; or None, and a word for what is wrong with it.

    Raises Refused for a checkpoint in another version's form.
    """
    payload, sha256, mark = data[:-_TAIL], data[-_TAIL : -len(_MARK)], data[-len(_MARK) :]
    if mark == _MARK and hashlib.sha256(payload).digest() == sha256:
        return payload, ""
    if mark != _MARK and mark.startswith(_ANY_MARK):
        raise Refused(
            f"the checkpoint {path} is of another version of torchtally: go on with that one, or choose another "
            "--output"
        )
    return None, "empty" if not data else "cut off" if mark != _MARK else "damaged"


def load(payload: bytes) -> State:
    """The state in a checkpoint's bytes, with its tensors on the CPU; nothing in it is executed."""
    state: State = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state


def _all(folder: Path) -> list[Path]:
    """All checkpoints, the newest first."""
    return sorted((path for path in folder.glob("*.checkpoint") if _NAME.fullmatch(path.name)), reverse=True)
