"""The same samples in files of each kind, written by the library that the kind belongs to.

Sample i has the number i and a text of its own length, so that offsets differ. The token files are of rows instead.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

PER_SHARD = 7
BLOCK = 5


def text(index: int) -> str:
    return f"text {index} " * (1 + index % 4)


def samples(start: int, end: int) -> list[dict[str, Any]]:
    return [{"number": index, "text": text(index)} for index in range(start, end)]


def write_mds(folder: Path, n: int, **options: Any) -> None:
    from streaming import MDSWriter

    # The limit that makes shards of different sizes.
    with MDSWriter(out=str(folder), columns={"number": "int", "text": "str"}, size_limit=640, **options) as writer:
        for sample in samples(0, n):
            writer.write(sample)


def write_parquet(folder: Path, n: int, per_file: int = 2 * PER_SHARD + 3) -> None:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for file, start in enumerate(range(0, n, per_file)):
        rows = pyarrow.Table.from_pylist(samples(start, min(n, start + per_file)))
        parquet.write_table(rows, folder / f"part-{file:03}.parquet", row_group_size=PER_SHARD)


def write_tars(folder: Path, n: int) -> None:
    import webdataset

    from torchtally.streams.webdataset import make_index

    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{folder}/shard-%03d.tar"
    with webdataset.ShardWriter(pattern, maxcount=PER_SHARD, verbose=0) as sink:  # type: ignore[attr-defined]
        for sample in samples(0, n):
            sink.write({"__key__": key(sample["number"]), "number.cls": sample["number"], "txt": sample["text"]})
    for shard in sorted(folder.glob("*.tar")):
        make_index(shard)


def key(index: int) -> str:
    """One that is long for a header of tar, one that is not ASCII, and one in a folder."""
    return f"{('', 'é', 'folder/', 'long' * 30)[index % 4]}{index:04}"


ROWS = (20, 0, 37, 44)  # of each file


def write_tokens(folder: Path, n: int, rows: Iterable[int] = ROWS, dtype: str = "uint16") -> None:
    """`n` is the sum of `rows`. The tokens of all files are those of one sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for file, number in enumerate(rows):
        tokens = number * BLOCK + 1 + file  # some of which make no row
        np.arange(first, first + tokens).astype(dtype).tofile(folder / f"{file}.bin")
        first += tokens


WRITERS = {"mds": write_mds, "parquet": write_parquet, "tars": write_tars, "tokens": write_tokens}


def of_kind(kind: str, where: str, **options: Any) -> Any:
    """The dataset in the folder or below the URL `where`."""
    if kind == "mds":
        from torchtally.streams.mds import MDS

        place = {"remote": where} if "://" in where or "local" in options else {"local": where}
        return MDS(**place, **options)
    if kind == "parquet":
        from torchtally.streams.parquet import ParquetFiles

        return ParquetFiles(f"{where}/*.parquet", **options)
    if kind == "tars":
        from torchtally.streams.webdataset import TarFiles

        return TarFiles(f"{where}/*.tar", **options)
    if kind == "tokens":
        from torchtally.streams.tokens import TokenFiles

        return TokenFiles(f"{where}/*.bin", **{"block": BLOCK, **options})
    import datasets

    assert kind == "datasets"
    return datasets.Dataset.from_parquet(sorted(map(str, Path(where).glob("*.parquet"))), cache_dir=f"{where}/cache")


def first_tokens() -> list[int]:
    """The first token of each row of the files that `write_tokens` writes by default."""
    starts = np.cumsum([0, *(number * BLOCK + 1 + file for file, number in enumerate(ROWS))])
    return [int(start) + row * BLOCK for start, rows in zip(starts, ROWS, strict=False) for row in range(rows)]


def number(kind: str, data: Any) -> Any:
    """The numbers of the samples of a batch, which they have in them."""
    if kind == "tokens":
        return torch.tensor([first_tokens().index(token) for token in data[:, 0].tolist()], dtype=torch.int64)
    return data["number.cls" if kind == "tars" else "number"]
