"""The folder of the checkpoints: on a volume that all pods share, or in an object store, by fsspec.

PyTorch's distributed checkpoint writes through `Files`, which hashes what is written on its way. Errors of an object
store become OSError: they are carried between ranks, which not all of them survive.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter

from torchtally.atomic_file import replace, sync
from torchtally.checkpoints.manifest import MANIFEST, File
from torchtally.file_systems import as_os_errors, opened


class Storage:
    """Reads and writes below `folder`, a path or a URL. Its methods raise OSError."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = os.fspath(folder)
        # Listings are never kept: other ranks write, too.
        self.fs, root = opened(self.folder, "checkpoints: the folder ", use_listings_cache=False)
        self.root = root.rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)

    def __str__(self) -> str:
        return self.folder

    def url(self, name: str) -> str:
        """`name` in the folder, as it is shown to people."""
        return f"{self.folder.rstrip('/')}/{name}"

    def path(self, name: str) -> str:
        """`name` in the folder, for `fs`."""
        return f"{self.root}/{name}"

    def names(self) -> list[str]:
        """Everything in the folder; nothing if there is no such folder."""
        with as_os_errors():
            try:
                return sorted(path.rstrip("/").rpartition("/")[2] for path in self.fs.ls(self.root, detail=False))
            except FileNotFoundError:
                return []

    def sizes(self, name: str) -> dict[str, int]:
        """The files of `name`, with their sizes in bytes."""
        with as_os_errors():
            found = self.fs.ls(self.path(name), detail=True)
            return {each["name"].rpartition("/")[2]: each["size"] for each in found if each["type"] == "file"}

    def read(self, name: str) -> bytes:
        with as_os_errors():
            contents: bytes = self.fs.cat_file(self.path(name))
            return contents

    def write(self, name: str, contents: bytes) -> None:
        """Write a file that appears complete or not at all."""
        with as_os_errors():
            if self.local:
                Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)
                replace(Path(self.path(name)), contents)
            else:
                self.fs.pipe_file(self.path(name), contents)

    def sha256(self, name: str) -> str:
        with as_os_errors(), self.fs.open(self.path(name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def remove(self, name: str) -> None:
        """Remove a file, or a checkpoint: its manifest first, so that what is left of it never looks whole."""
        with as_os_errors():
            for path in (self.path(f"{name}/{MANIFEST}"), self.path(name)):
                if self.fs.exists(path):
                    self.fs.rm(path, recursive=True)

    def writer(self, name: str) -> "tuple[FileSystemWriter, Files]":
        """What PyTorch's distributed checkpoint writes `name` with, and the files that this rank has written by it."""
        files = Files(self)
        # Files are synced by Files. What is written is in memory already, which is what copying ahead is for.
        writer = FileSystemWriter(self.path(name), sync_files=False, per_thread_copy_ahead=0)
        writer.fs, writer.path = files, self.path(name)  # type: ignore[assignment]  # any FileSystemBase
        return writer, files

    def reader(self, name: str) -> FileSystemReader:
        """What PyTorch's distributed checkpoint reads `name` with."""
        reader = FileSystemReader(self.path(name))
        reader.fs, reader.path = Files(self), self.path(name)  # type: ignore[assignment]  # as above
        return reader


class Files(FileSystemBase):
    """A Storage as PyTorch's distributed checkpoint uses it. `written` has what this rank has written, by name."""

    def __init__(self, storage: Storage):
        self._fs, self._local = storage.fs, storage.local
        self.written: dict[str, File] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with as_os_errors(), self._fs.open(path, mode) as raw:
            if mode == "rb":
                yield raw
                return
            stream = _Hashing(raw, self._local)
            yield stream
            stream.close()
        self.written[_name(path)] = File(stream.size, stream.sha256.hexdigest())

    def rename(self, path: Any, new_path: Any) -> None:
        with as_os_errors():
            self._fs.mv(path, new_path)
        self.written[_name(new_path)] = self.written.pop(_name(path))

    def mkdir(self, path: Any) -> None:
        if self._local:  # an object store has no folders, and would make a bucket
            Path(path).mkdir(parents=True, exist_ok=True)
            sync(Path(path).parent)

    def exists(self, path: Any) -> bool:
        with as_os_errors():
            return bool(self._fs.exists(path))

    def rm_file(self, path: Any) -> None:
        with as_os_errors():
            self._fs.rm(path)

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: Any) -> Any:
        return path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class _Hashing:
    """A file that is written from its beginning to its end, and hashed meanwhile."""

    def __init__(self, raw: Any, sync: bool):
        self._raw, self._sync, self._closed = raw, sync, False
        self.size, self.sha256 = 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self._raw.write(data)
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._raw.closed:  # as PyTorch does when it collects what a failed write has left
            self._raw.flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._raw.flush()
            if self._sync:
                os.fsync(self._raw.fileno())
            self._raw.close()


def _name(path: Any) -> str:
    return str(path).rpartition("/")[2]
