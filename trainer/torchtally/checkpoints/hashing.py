"""Hashes of tensors, computed where they are."""

import torch
from torch import Tensor


def hash_of(values: Tensor) -> int:
    """Return a hash of the bits of all values, in any order of them. A tensor without a value has 0."""
    if not values.numel():
        return 0
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.is_floating_point() and values.element_size() == 1:
        values = values.view(torch.uint8)
    return int(torch.hash_tensor(values).view(torch.int64))
