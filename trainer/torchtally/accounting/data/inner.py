"""Datasets within a dataset: all that a proof of the outer rows takes for granted of their samples is checked."""

from typing import Any

from torch.utils.data import IterableDataset

from torchtally.accounting.data.facts import changed_length
from torchtally.errors import Refused, Unproven


def check(dataset: Any, name: str) -> None:
    """Raise Refused unless the dataset gives a sample by its number."""
    stream = isinstance(dataset, IterableDataset)
    if stream or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise Refused(f"{name} must be a map-style dataset, and is a {type(dataset).__name__}")


def fetched(dataset: Any, indices: list[int]) -> Any:
    """Return the samples at `indices` of a dataset, which can fetch them all at once in a form of its own."""
    at_once = getattr(dataset, "__getitems__", None)
    return at_once([*indices]) if at_once else [dataset[index] for index in indices]


def checked(dataset: Any, indices: list[int], length: int, name: str) -> list[Any]:
    """Return a list of the same, of a dataset that must have its length. Raises Refused and Unproven."""
    if (now := len(dataset)) != length:
        raise Refused(f"{name}: {changed_length(length, now)}")
    found = fetched(dataset, indices)
    if not isinstance(found, list):
        raise Refused(f"{name}: its __getitems__ must return a list, and returned a {type(found).__name__}")
    if len(found) != len(indices):
        raise Unproven(
            f"{name}: for {len(indices)} samples its __getitems__ returned {len(found)}, and must return one for each"
        )
    return found
