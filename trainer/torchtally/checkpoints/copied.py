"""A library's checkpoint on all ranks: rank 0's, copied to the pods that do not see it."""

import os
import tarfile
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist

from torchtally import exchange
from torchtally.checkpoints.collective import on_all, on_rank_0
from torchtally.errors import Refused, Volume
from torchtally.log import log

_PART = 1 << 20  # bytes that travel at a time; tarfile copies its buffer often
_BYTES = exchange.Form(bytes, bytes)


def of_rank_0(path: str | os.PathLike[str] | None, pod: str, group: dist.ProcessGroup, until: ExitStack) -> Path | None:
    """Return where this rank finds rank 0's file or folder; None if rank 0 has none. A collective call.

    Args:
        path: Rank 0's counts.
        pod: Name of this rank's pod, whose ranks share a copy.
        group: All ranks.
        until: Removes the copy in the end.

    Raises:
        Refused: It is a URL.
        Volume: It cannot be read, or there is no room for a copy. All ranks raise it.
    """

    def look() -> tuple[str, list[list[Any]]] | None:
        if "://" in str(path):
            raise Refused(
                f"resume_from({str(path)!r}) must receive a path: all ranks see a URL, so give it to the library, and "
                "anew=True to the Account if there is no checkpoint"
            )
        try:
            listed = _listed(Path(path)) if path is not None else []
        except OSError as error:
            raise Volume(f"the checkpoint {path} cannot be read: {error}") from None
        return (str(path), listed) if listed else None

    def sees() -> bool:
        with suppress(OSError):
            return bool(_listed(source) == found[1])
        return False

    found = on_rank_0(group, look)
    if found is None:
        return None
    source, rank = Path(found[0]), dist.get_rank(group)
    pods = on_all(group, lambda: (pod, sees()))
    lacking = {rank: pod for rank, (pod, sees) in enumerate(pods) if not sees}
    if not lacking:
        return source
    writers = {pod: rank for rank, pod in reversed(lacking.items())}  # the first rank of each that lacks it
    if rank == 0:
        log.info(f"{source} of rank 0 is copied to {', '.join(sorted(writers))}, which have another volume there")

    def folder() -> str | None:
        return until.enter_context(TemporaryDirectory(prefix="torchtally-")) if rank in writers.values() else None

    folders = on_all(group, folder)
    wrong = _send(source, group) if rank == 0 else _receive(folders[rank], group)

    def judge() -> None:
        if wrong:
            raise Volume(
                f"{pod} has no copy of {source} of rank 0: {wrong}; let all pods share the volume of the checkpoints "
                "(in the chart, model.accessMode=ReadWriteMany), or give the copy more room (TMPDIR)"
            )

    on_all(group, judge)
    return Path(folders[writers[pod]]) / source.name if rank in lacking else source


def _listed(path: Path) -> list[list[Any]]:
    """The files of it, with what tells them from copies and from others of their names."""
    files = path.rglob("*") if path.is_dir() else [path]
    states = ((str(each.relative_to(path)), each.stat()) for each in files if each.is_file())
    return sorted([name, each.st_size, each.st_mtime_ns, each.st_ino] for name, each in states)


class _Stream:
    """A file that rank 0 writes and the others read."""

    def __init__(self, group: dist.ProcessGroup):
        self._group, self._ended = group, False

    def write(self, data: bytes) -> int:
        exchange.broadcast(data, group=self._group, form=_BYTES)
        return len(data)

    def read(self, size: int) -> bytes:
        found: bytes = b"" if self._ended else exchange.broadcast(b"", group=self._group, form=_BYTES)
        self._ended = not found
        return found


def _send(path: Path, group: dist.ProcessGroup) -> OSError | None:
    stream: Any = _Stream(group)
    try:
        with tarfile.open(fileobj=stream, mode="w|", bufsize=_PART, dereference=True) as archive:
            archive.add(path, path.name)
    except OSError as error:
        return error
    finally:
        stream.write(b"")  # the end, also of what is cut off
    return None


def _receive(folder: str | None, group: dist.ProcessGroup) -> Exception | None:
    stream: Any = _Stream(group)
    wrong: Exception | None = None
    try:
        if folder:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_PART) as archive:
                archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        wrong = error
    while stream.read(_PART):
        pass
    return wrong
