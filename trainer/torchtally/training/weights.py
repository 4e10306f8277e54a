"""Weights that are no model's: what differs from its `state_dict`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def mismatch(weights: Any, expected: Mapping[str, Tensor]) -> str | None:
    """The first difference between the weights and those of a model, or None."""
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        return "it is no dictionary of tensors"
    if missing := expected.keys() - weights.keys():
        return f"it has no {min(missing)}"
    if unknown := weights.keys() - expected.keys():
        return f"it has {min(unknown, key=str)}, and the model does not"
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            return f"its {name} has the shape {tuple(weights[name].shape)} and the model's has {tuple(value.shape)}"
    return None
