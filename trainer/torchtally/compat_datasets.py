"""The private name of Hugging Face's datasets that this package uses, where a program uses them: see compat.py."""

import sys
from typing import Any

import numpy as np

PRIVATE = "_indices"  # of a Dataset


def chosen(dataset: Any) -> list["np.ndarray[Any, Any]"]:
    """Return which rows of its table a Dataset has, in order and in parts; nothing if these are all, or unknown."""
    library = sys.modules.get("datasets.arrow_dataset")  # a program can have a module `datasets` of its own
    if library is None or not isinstance(dataset, library.Dataset):
        return []
    indices = getattr(dataset, PRIVATE, None)
    return [] if indices is None else [part.to_numpy() for part in indices.column(0).chunks]
