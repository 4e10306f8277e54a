"""Hashes of tensors, computed where they are if PyTorch can do so there."""

import functools

import torch
from torch import Tensor

_WORD = 8  # bytes
_BLOCK = 1 << 17  # words that are weighted at a time, which bounds the memory that a hash takes
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd number whose multiples are spread evenly


def hash_of(values: Tensor) -> int:
    """Return a hash of the bits of all values in their places. Words of 8 bytes are multiplied by odd random numbers.

    The upper bits of a word are folded into the lower ones before: in the product, they reach the highest bits alone.
    """
    if not values.numel():
        return 0
    values = values.detach() if values.device.type in ("cpu", "cuda") else values.detach().cpu()
    data = values.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if rest := len(data) % _WORD:
        data = torch.cat([data, data.new_zeros(_WORD - rest)])
    elif data.data_ptr() % _WORD:
        data = data.clone()
    found = torch.zeros((), dtype=torch.int64, device=data.device)
    for block in data.view(torch.int64).split(_BLOCK):
        folded = block ^ ((block >> 29) & 0x7FFFFFFFF)
        found = found * _STEP + (folded * _weights(data.device)[: len(block)]).sum()
    return int(found) & 0xFFFFFFFFFFFFFFFF


@functools.cache
def _weights(device: torch.device) -> Tensor:
    """Odd numbers, the same on all devices."""
    mixed = torch.arange(1, _BLOCK + 1, device=device) * _STEP
    mixed ^= (mixed >> 29) & 0x7FFFFFFFF
    return (mixed * _STEP) | 1
