"""Parquet files, by pyarrow: a row group is a shard."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import parquet

from torchtally.errors import Refused
from torchtally.file_systems import reading
from torchtally.streams.files import Files, check_distinct, expanded, of_each, part, system, without_place
from torchtally.streams.shards import Shards

_MAGIC = b"PAR1"
_END = 8  # bytes after the footer: its length, and the magic


@dataclass(frozen=True)
class _Footer:
    """What a file says of itself at its end."""

    length: int  # bytes, with what comes after it
    sha256: str
    row_groups: tuple[int, ...]  # rows of each
    columns: tuple[str, ...]


class ParquetFiles(Shards):
    """Rows of Parquet files, as dictionaries of Python's own types. Each row group is a shard.

    A process keeps the row groups that it has open in memory, decoded.

    Args:
        files: Paths or URLs of any file system of fsspec, or one of them with `*`.
        columns: Columns that are read (default: all).
        open_shards: Number of row groups that a process keeps.

    Example:
        >>> table = pyarrow.table({"x": range(100), "y": range(100)})
        >>> parquet.write_table(table, f"{folder}/a.parquet", row_group_size=30)
        >>> rows = ParquetFiles(f"{folder}/*.parquet", columns=["x"])
        >>> rows.shard_sizes, rows[95]
        ([30, 30, 30, 10], {'x': 95})

    Raises:
        Refused: An argument is not valid, or a file is not whole.
        Volume: A file cannot be read, and another attempt can succeed.
    """

    def __init__(self, files: Files, *, columns: Sequence[str] | None = None, open_shards: int = 8):
        self._urls = expanded(files)
        self._footers: list[_Footer] = of_each(lambda url: _footer(url)[0], self._urls)
        check_distinct(self._urls, [sum(footer.row_groups) for footer in self._footers])
        self._columns = None if columns is None else list(columns)
        if self._columns == []:
            raise Refused("columns=[] must name at least one column")
        for url, footer in zip(self._urls, self._footers, strict=True):
            if missing := [name for name in self._columns or () if name not in footer.columns]:
                raise Refused(f"{url} has no column {missing[0]!r}: choose columns from {', '.join(footer.columns)}")
        # Of each shard: its file, and its row group there.
        self._places = [
            (file, group) for file, footer in enumerate(self._footers) for group in range(len(footer.row_groups))
        ]
        sizes = [self._footers[file].row_groups[group] for file, group in self._places]
        files_described = [
            [name, footer.sha256] for name, footer in zip(without_place(self._urls), self._footers, strict=True)
        ]
        super().__init__("parquet", sizes, [files_described, self._columns], open_shards)

    def _open(self, shard: int) -> pyarrow.Table:
        file, group = self._places[shard]
        url, known = self._urls[file], self._footers[file]
        found, metadata = _footer(url, known.length)
        if found.sha256 != known.sha256:
            raise Refused(f"{url} has changed: the hash of its footer was {known.sha256}, and now it is {found.sha256}")
        fs, path = system(url)
        with reading(url), fs.open(path, "rb") as opened:
            return parquet.ParquetFile(opened, metadata=metadata).read_row_group(group, columns=self._columns)

    def _read(self, opened: pyarrow.Table, rows: list[int]) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = opened.take(rows).to_pylist()
        return samples


def _footer(url: str, length: int = 1 << 16) -> tuple[_Footer, Any]:
    """Return a file's footer, and its metadata as pyarrow has them. `length` is a guess, which saves a request."""
    end = part(url, -length)
    if len(end) < _END or not end.endswith(_MAGIC):
        raise Refused(f"{url} is not a whole Parquet file: it ends with {end[-4:]!r}, and must end with {_MAGIC!r}")
    needed = int.from_bytes(end[-_END:-4], "little") + _END
    if needed > len(end):
        end = part(url, -needed)
    if needed > len(end):
        raise Refused(f"{url} is not a whole Parquet file: it has {len(end)} bytes, and its footer alone {needed}")
    footer = end[-needed:]
    try:
        metadata = parquet.read_metadata(pyarrow.BufferReader(_MAGIC + footer))
    except pyarrow.ArrowException as error:
        raise Refused(f"{url} is not a whole Parquet file: {error}") from None
    starts = Counter(_start(metadata.row_group(group)) for group in range(metadata.num_row_groups))
    del starts[None]
    if twice := [start for start, groups in starts.items() if groups > 1]:
        raise Refused(f"{url} is not valid: two of its row groups begin at byte {twice[0]}")
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    columns = tuple(metadata.schema.to_arrow_schema().names)
    return _Footer(needed, hashlib.sha256(footer).hexdigest()[:16], rows, columns), metadata


def _start(group: Any) -> int | None:
    """The byte at which a row group begins, if it has a value."""
    if not group.num_rows or not group.num_columns:
        return None
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)
