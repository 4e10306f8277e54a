"""Hashes of tensors, computed where they are if PyTorch can do so there."""

import torch
from torch import Tensor

_WORD = 8  # bytes


def hash_of(values: Tensor) -> int:
    """Return a hash of the bits of all values: of words of 8 bytes, as 2 bytes of a value would be too few.

    Equal words cancel each other in pairs, so a tensor of equal values can have 0.
    """
    if not values.numel():
        return 0
    values = values.detach() if values.device.type in ("cpu", "cuda") else values.detach().cpu()
    data = values.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if data.data_ptr() % _WORD:
        data = data.clone()
    whole = len(data) // _WORD * _WORD
    found = int(torch.hash_tensor(data[:whole].view(torch.int64)).view(torch.int64)) if whole else 0
    rest = data[whole:].tolist() if whole < len(data) else []
    return found ^ int.from_bytes(bytes(rest), "little")
