"""Files that appear complete or not at all: written to a temporary file, synced and renamed."""

import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO


def replace(path: Path, contents: bytes | Callable[[IO[bytes]], object]) -> Path:
    """Replace the file `path` atomically by `contents`, bytes or a function that writes them; returns `path`."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            if callable(contents):
                contents(file)
            else:
                file.write(contents)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)  # a temporary file is private
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    sync(path.parent)
    return path


def clear(folder: Path, names: Iterable[str]) -> None:
    """Delete temporary files of `names` that killed processes have left.

    Call it only while no other process writes these files. Raises OSError.
    """
    half = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[a-z0-9_]{{8}}")
    for path in folder.iterdir():
        if half.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Write the names in `folder` to the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
