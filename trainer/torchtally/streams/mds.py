"""MDS, the format of mosaicml-streaming, by that library's own streams and readers.

Its StreamingDataset is not used: what it holds in shared memory outlives a job that is killed, and the library refuses
the next start in the same folder.
"""

import hashlib
import mmap
import os
import posixpath
from collections import Counter
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from streaming import Stream
from streaming.base.util import bytes_to_int
from streaming.base.world import World

from torchtally.errors import Refused
from torchtally.file_systems import reading
from torchtally.streams.files import Copies, check_distinct, folder_of, whole
from torchtally.streams.shards import Shards

_INDEX = "index.json"
_ALONE = World(num_nodes=1, ranks_per_node=1, workers_per_rank=1, worker=0)  # a lock says who fetches the index


class MDS(Shards):
    """Samples of an MDS dataset, as dictionaries. The arguments are those of mosaicml-streaming's StreamingDataset.

    Args:
        remote: URL of the dataset, of any kind that the library knows.
        local: Folder for copies of the shards (default: a temporary one), or of the dataset if there is no `remote`.
        split: Folder in both.
        open_shards: Number of shards that a process keeps open.
        cache_limit: Bytes of the copies, as a number or a text such as `"100gb"` (default: no limit).
        download_retry: Number of attempts to fetch a shard after the first.
        download_timeout: Seconds that an attempt may take.
        validate_hash: Algorithm by which a fetched shard is checked, if its index has the hash.
        allow_unsafe_types: Whether samples may contain pickled objects, which can run code.

    Example:
        >>> from streaming import MDSWriter
        >>> with MDSWriter(out=folder, columns={"x": "int"}) as writer:
        ...     for x in range(100):
        ...         writer.write({"x": x})
        >>> MDS(local=folder)[7]
        {'x': 7}

    Raises:
        Refused: An argument is not valid, or the index or a shard is not whole.
        Volume: The dataset cannot be read, and another attempt can succeed.
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        open_shards: int = 32,
        cache_limit: int | str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        allow_unsafe_types: bool = False,
    ):
        if remote is None and local is None:
            raise Refused("MDS needs remote or local")
        self._unsafe = allow_unsafe_types
        self._folder = folder_of(remote or "", local) / (split or "")
        self._remote = remote if remote != local else None
        self._options: dict[str, Any] = {
            "remote": remote,
            "local": str(folder_of(remote or "", local)),
            "split": split or "",
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": False,
        }
        self._stream_of: tuple[int, Stream] | None = None
        self._readers = self._shards()
        names = [reader.raw_data.basename for reader in self._readers]
        self._check_distinct(names)
        try:
            limit = bytes_to_int(cache_limit) if isinstance(cache_limit, str) else cache_limit
        except ValueError:
            raise Refused(f"cache_limit={cache_limit!r} must be a number of bytes, or a text such as '100gb'") from None
        self._copies = Copies(self._folder, names, limit if self._remote else None)
        index = hashlib.sha256((self._folder / _INDEX).read_bytes()).hexdigest()
        super().__init__("mds", [reader.samples for reader in self._readers], index, open_shards)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_stream_of": None}

    @property
    def _stream(self) -> Stream:
        """This process's own: connections cannot be forked."""
        if self._stream_of is None or self._stream_of[0] != os.getpid():
            stream = Stream(**self._options)
            stream.apply_default(self._options)
            self._stream_of = os.getpid(), stream
        return self._stream_of[1]

    def _shards(self) -> list[Any]:
        index = self._folder / _INDEX
        if self._remote is None and not index.exists():
            raise Refused(f"{index} does not exist: local must be the folder of it, or pass remote")
        if self._remote is None or index.exists():
            return self._listed()
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{index}.lock"):
            return self._listed()

    def _listed(self) -> list[Any]:
        with reading(self._url(_INDEX)):
            return [*self._stream.get_shards(_ALONE, self._unsafe)]

    def _check_distinct(self, names: list[str]) -> None:
        if self._remote is None:
            check_distinct([self._url(name) for name in names], [reader.samples for reader in self._readers])
        if twice := [name for name, times in Counter(map(posixpath.normpath, names)).items() if times > 1]:
            again = "each of its samples would be trained twice in an epoch"
            raise Refused(f"{self._url(_INDEX)} lists {twice[0]} twice: {again}; list it once")

    def _url(self, name: str) -> str:
        if self._remote is None:
            return str(self._folder / name)
        return "/".join(filter(None, [self._remote.rstrip("/"), self._options["split"], name]))

    def _open(self, shard: int) -> tuple[Any, mmap.mmap, NDArray[np.uint32]]:
        reader = self._readers[shard]
        name, size = reader.raw_data.basename, reader.raw_data.bytes
        path = self._folder / name

        def fetch() -> None:
            with reading(self._url(name)):
                self._stream.prepare_shard(reader)

        if self._remote or (reader.zip_data and not path.exists()):
            file = self._copies.open(name, size, fetch)
        else:
            with reading(str(path)):
                file = whole(path, size)
        with file:
            opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # The number of samples, and where each begins and the last ends.
        samples = int(np.frombuffer(opened, np.uint32, 1)[0])
        if samples != reader.samples:
            raise Refused(f"{path} has {samples} samples, and its index says {reader.samples}")
        return reader, opened, np.frombuffer(opened, np.uint32, samples + 1, 4)

    def _read(self, opened: tuple[Any, mmap.mmap, NDArray[np.uint32]], rows: list[int]) -> list[dict[str, Any]]:
        reader, data, begins = opened
        return [reader.decode_sample(data[begins[row] : begins[row + 1]]) for row in rows]
