"""Random numbers that follow from a position, so that no generator's state is saved."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mixed(*values: int) -> int:
    """Return a seed of 64 bits that follows from the values and their order."""
    seed = 0
    for value in values:
        seed = (seed + value) * 0x9E3779B97F4A7C15 & _MASK
        seed ^= seed >> 29
    return seed


def number_of(text: str) -> int:
    """Return 64 bits that follow from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def reseed(seed: int) -> None:
    """Seed the generators of this process: torch's on the CPU and on its GPU, Python's, and NumPy's."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # the global one, which datasets use


@contextmanager
def kept() -> Iterator[None]:
    """Leave the generators that `reseed` seeds as they are."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    state, of_arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(of_arrays)
