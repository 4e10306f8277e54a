"""What identifies a Dataset of Hugging Face's datasets, and the private name for that: see compat.py."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PRIVATE = "_indices"  # of a Dataset
_COMPARED = 64  # rows of a table, evenly spaced
_MOST = 1 << 24  # bytes of these, after which no further row is read


def content(dataset: Any) -> Iterator[bytes] | None:
    """Return some rows of a Dataset's table, without the folders of files; None for another kind of dataset.

    `select` of neighboring rows cuts the table, and `map` after a choice makes a new one. So a choice of rows shows in
    the table where `chosen` has none.
    """
    return _some_rows(dataset.data.table) if _is_dataset(dataset) else None


def _some_rows(table: Any) -> Iterator[bytes]:
    rows = np.linspace(0, max(table.num_rows - 1, 0), min(_COMPARED, table.num_rows)).astype(int).tolist()
    size = 0
    for row in random.Random(0).sample(rows, len(rows)):  # from the whole table, however many are read
        text = repr(_without_folders(table.slice(row, 1).to_pylist())).encode()
        yield text
        if (size := size + len(text)) > _MOST:
            return


def chosen(dataset: Any) -> list["np.ndarray[Any, Any]"]:
    """Return which rows of its table a Dataset has, in order and in parts; nothing if these are all, or unknown."""
    indices = getattr(dataset, PRIVATE, None) if _is_dataset(dataset) else None
    return [] if indices is None else [part.to_numpy() for part in indices.column(0).chunks]


def _is_dataset(dataset: Any) -> bool:
    library = sys.modules.get("datasets.arrow_dataset")  # a program can have a module `datasets` of its own
    return library is not None and isinstance(dataset, library.Dataset)


def _without_folders(value: Any) -> Any:
    """A row in which images and sounds that are files have no folder, which each pod can have its own of."""
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    if isinstance(value, dict):
        if value.keys() == {"bytes", "path"} and isinstance(value["path"], str):
            return {**value, "path": Path(value["path"]).name}
        return {name: _without_folders(each) for name, each in value.items()}
    return value
