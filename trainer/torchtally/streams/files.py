"""Files on this machine or in an object store, by fsspec, and copies of them on this machine."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock
from fsspec.implementations.local import LocalFileSystem

from torchtally.errors import Refused
from torchtally.file_systems import opened, reading

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_REQUESTS = 16  # at a time
_ATTEMPTS = 8  # to open a copy that others remove meanwhile


# Of this process and, after a fork, of its parent: a child that drops these closes connections that are not its own.
_systems: list[Any] = []


def system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Every process must ask anew: connections cannot be forked."""
    fs, path = opened(url)
    if not any(fs is each for each in _systems):
        _systems.append(fs)
    return fs, path


def expanded(urls: Files) -> list[str]:
    """Return the URLs that a pattern with `*` names, sorted, or a list as it is.

    Raises Refused, also if two URLs name one file, and Volume.
    """
    if isinstance(urls, os.PathLike):
        urls = os.fspath(urls)
    if not isinstance(urls, str):
        found = [str(url) for url in urls]
    elif "*" in urls:
        fs, path = system(urls)
        with reading(urls):
            found = [each if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(each) for each in fs.glob(path)]
        found.sort()
    else:
        found = [urls]
    if not found:
        raise Refused(f"there is no file {urls!r}")
    _check_distinct(found, lambda fs, path: fs.unstrip_protocol(path))
    return found


def check_distinct(urls: Sequence[str], samples: Sequence[int] | None = None) -> None:
    """Raise Refused if two URLs name one file of this machine, unless it has no `samples`: each would have two numbers.

    A cache that keeps each content once links all empty files to one.
    """
    _check_distinct([url for url, count in zip(urls, samples or [1] * len(urls), strict=True) if count], _identity)


def _check_distinct(urls: Sequence[str], identity: Callable[[Any, str], Any]) -> None:
    known: dict[Any, str] = {}
    for url in urls:
        file = identity(*system(url))
        if file in known:
            also = "" if known[file] == url else f", also as {known[file]}"
            raise Refused(
                f"{url} is listed twice{also}: each of its samples would be trained twice in an epoch; list it once"
            )
        known[file] = url


def _identity(fs: Any, path: str) -> Any:
    """What all paths to a file of this machine have in common."""
    if not isinstance(fs, LocalFileSystem):
        return fs.unstrip_protocol(path)
    try:
        found = Path(path).stat()
    except OSError:  # reading the file reports it
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def of_each(function: Callable[[str], Any], urls: Sequence[str]) -> list[Any]:
    """Return what `function` returns for each URL; many requests are under way at a time."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return [*pool.map(function, urls)]


def size(url: str) -> int:
    """Return the size of a file in bytes. Raises Refused and Volume."""
    fs, path = system(url)
    with reading(url):
        return int(fs.info(path)["size"])


def part(url: str, start: int, end: int | None = None) -> bytes:
    """Return the bytes from `start` (negative: from the end) to `end`. Raises Refused and Volume."""
    fs, path = system(url)
    with reading(url):
        found: bytes = fs.cat_file(path, start=start, end=end)
        return found


def whole(path: Path, size: int) -> BinaryIO:
    """Open a file of this machine that must have `size` bytes. Raises FileNotFoundError and Refused."""
    file = path.open("rb")
    found = os.fstat(file.fileno()).st_size
    if found != size:
        file.close()
        raise Refused(f"{path} has {found} bytes, and {size} are expected: copy the file again, or index it again")
    return file


class Copies:
    """Copies in a folder of this machine, each of which is fetched by one process for all.

    If there is a limit, those that were not opened for the longest time are removed before another is fetched. Copies
    that are being fetched come on top of it.

    Args:
        folder: Where the copies are, or are to be.
        names: All copies that there can be.
        limit: Bytes of the copies (default: no limit).
    """

    def __init__(self, folder: Path, names: Sequence[str], limit: int | None):
        if isinstance(limit, str):
            raise Refused(f"cache_limit={limit!r} must be a number of bytes")
        self.folder, self._names, self._limit = folder, names, limit

    def open(self, name: str, size: int, fetch: Callable[[], None]) -> BinaryIO:
        """Open a copy of `size` bytes, which `fetch` makes if it is not there. Raises Refused."""
        path = self.folder / name
        for _ in range(_ATTEMPTS):
            if not _has(path, size):
                self.folder.mkdir(parents=True, exist_ok=True)
                with FileLock(f"{path}.lock"):
                    if not _has(path, size):
                        self._make_room(size, name)
                        path.unlink(missing_ok=True)  # a part, of a process that was killed
                        fetch()
            with suppress(FileNotFoundError):  # removed by another process to make room
                file = whole(path, size)
                os.utime(file.fileno())  # `path` may have been removed since
                return file
        raise Refused(f"{path} was removed {_ATTEMPTS} times before it could be opened: cache_limit is too small")

    def _make_room(self, size: int, coming: str) -> None:
        if self._limit is None:
            return
        if size > self._limit:
            raise Refused(f"cache_limit={self._limit} must be at least the size of a shard: {coming} has {size} bytes")
        there = []
        for name in self._names:
            with suppress(FileNotFoundError):
                found = (self.folder / name).stat()
                there.append((found.st_mtime_ns, found.st_size, name))
        free = self._limit - sum(size for _, size, _ in there)
        for _, freed, name in sorted(there):
            if free >= size:
                break
            (self.folder / name).unlink(missing_ok=True)
            free += freed


def folder_of(remote: str, local: str | os.PathLike[str] | None) -> Path:
    """Return the folder of copies: `local`, or one in the machine's temporary folder that `remote` names."""
    if local is not None:
        return Path(local)
    return Path(tempfile.gettempdir()) / f"torchtally-{_digest(remote)}"


class Opener:
    """Opens whole files by their URL: those of this machine where they are, others as copies.

    Args:
        urls: The files.
        local: Folder of the copies.
        limit: Bytes of the copies.
    """

    def __init__(self, urls: Sequence[str], local: str | os.PathLike[str] | None, limit: int | None):
        self.sizes = of_each(size, urls)  # in bytes
        self._urls = urls
        self._names = [f"{_digest(url)}-{basename(url)}" for url in urls]  # names can be equal in different folders
        self._copies = Copies(folder_of("\n".join(urls), local), self._names, limit)

    def open(self, number: int) -> BinaryIO:
        """Open a file. Raises Refused if it does not have its size any more, and Volume if it cannot be read."""
        url, name, size = self._urls[number], self._names[number], self.sizes[number]
        fs, path = system(url)
        if isinstance(fs, LocalFileSystem):
            with reading(url):
                return whole(Path(path), size)

        def fetch() -> None:
            coming = self._copies.folder / f"{name}.part"
            with reading(url):
                fs.get_file(path, str(coming))
            coming.replace(self._copies.folder / name)

        return self._copies.open(name, size, fetch)


def basename(url: str) -> str:
    return url.rpartition("/")[2]


def without_place(urls: Sequence[str]) -> list[str]:
    """Return the URLs without the folders that all are in: what stays the same if the files are elsewhere together."""
    paths = [url.split("/") for url in urls]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    common = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    return ["/".join(path[common:]) for path in paths]


def _has(path: Path, size: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:  # also of one that another process has just removed
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
