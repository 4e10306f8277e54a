"""Checkpoint files: the newest few and the best one are kept; damaged ones are skipped with a warning.

A file holds the bytes of torch.save, their SHA-256 and a format mark. Its name holds the epoch and the position.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchtally import exchange
from torchtally.atomic_file import replace
from torchtally.errors import Refused

State = dict[str, Any]  # for torch.load(weights_only=True): tensors, numbers, text, lists, dictionaries

_ANY_MARK = b"torchtally-checkpoint-"
_MARK = _ANY_MARK + b"4\n"
_TAIL = hashlib.sha256().digest_size + len(_MARK)
SUFFIX = ".checkpoint"
_NAME = re.compile(r"epoch-(\d{8})-position-(\d{19})\.checkpoint")


@dataclass(frozen=True)
class Found:
    """The newest intact checkpoint, if there is one, and what is wrong with each newer file, which was skipped."""

    payload: bytes | None
    path: Path | None
    skipped: list[str]


def save(folder: Path, epoch: int, position: int, state: State, keep: int, best: str | None = None) -> Path:
    """Write `state`, then keep the `keep` newest checkpoints up to this one and the one named `best`.

    Newer files stay: a resume has skipped them. Raises OSError.
    """
    payload = exchange.saved(state)
    folder.mkdir(parents=True, exist_ok=True)
    path = replace(folder / file_name(epoch, position), payload + hashlib.sha256(payload).digest() + _MARK)
    older = [each for each in _all(folder) if each.name < path.name and not each.is_dir()]
    for each in older[keep - 1 :]:
        if each.name != best:
            each.unlink(missing_ok=True)
    return path


def file_name(epoch: int, position: int) -> str:
    """The name of a checkpoint after `position` samples of `epoch`; names sort in the order of training."""
    return f"epoch-{epoch:08d}-position-{position:019d}{SUFFIX}"


def newest(folder: Path, clear: bool = True) -> Found:
    """Find the newest intact checkpoint; `clear` deletes temporary files that a killed process left.

    Raises OSError if the folder exists and cannot be read, and Refused for a checkpoint in another format.
    """
    skipped: list[str] = []
    for path in _all(folder):
        try:
            # A folder cannot be read, and a read of a pipe would never end.
            payload, wrong = verify(path, path.read_bytes()) if path.is_file() else (None, "not a file")
        except FileNotFoundError:
            continue  # a master that is still terminating may delete it
        if payload is not None:
            for half in folder.glob(".*.checkpoint.*") if clear else ():
                half.unlink(missing_ok=True)
            return Found(payload, path, skipped)
        skipped.append(f"checkpoint {path}: it is {wrong}")
    return Found(None, None, skipped)


def verify(path: Path, data: bytes) -> tuple[bytes | None, str]:
    """Return the payload in `data`, the contents of `path`; or None and the kind of damage.

    Raises Refused for a checkpoint in another format.
    """
    payload, sha256, mark = data[:-_TAIL], data[-_TAIL : -len(_MARK)], data[-len(_MARK) :]
    if mark == _MARK and hashlib.sha256(payload).digest() == sha256:
        return payload, ""
    if mark != _MARK and mark.startswith(_ANY_MARK):
        raise Refused(
            f"the checkpoint {path} was written by another version of torchtally: use that version, or choose "
            "another folder"
        )
    return None, "empty" if not data else "cut off" if mark != _MARK else "damaged"


def load(payload: bytes) -> State:
    """The state in a checkpoint's bytes, with its tensors on the CPU; nothing in it is executed."""
    state: State = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state


def is_name(name: str) -> bool:
    """Whether it is the name of a checkpoint."""
    return _NAME.fullmatch(name) is not None


def _all(folder: Path) -> list[Path]:
    """All checkpoints, the newest first."""
    return sorted((path for path in folder.glob("*.checkpoint") if is_name(path.name)), reverse=True)
