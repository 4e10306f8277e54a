"""The order of samples and their digest, made by torch where the samples are: what shards and digest make, to the bit.

On a GPU nothing then waits for the CPU but once in many steps. torch computes in int64, which wraps around like words
of 64 bits; only its right shift is another, so what is shifted here is never negative.
"""

import torch
from torch import Tensor

from torchtally.proof import digest, shards
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Order, Progression

_LOW = (1 << 32) - 1


def indices(
    n: int,
    rank: int,
    world: int,
    contract: Contract,
    order: Order,
    seed: int,
    epoch: int,
    begin: int,
    end: int,
    start: int,
    device: torch.device,
) -> Tensor:
    """Sample indices of the shard's samples number `begin` to `end`."""
    end = min(end, shards.size(n, rank, world, contract, start))
    first, last = (start + rank + world * number for number in (min(begin, end), end))
    positions = torch.arange(first, last, world, device=device)
    if last > n:  # of `padded` alone
        positions %= n
    return positions if order == "sequential" else permute(positions, n, seed, epoch)


def permute(positions: Tensor, n: int, seed: int, epoch: int) -> Tensor:
    """Sample indices at `positions` (int64) of the order of (n, seed, epoch)."""
    return _walk(positions, n, seed, epoch, inverse=False)


def locate(indices: Tensor, n: int, seed: int, epoch: int) -> Tensor:
    """Positions of `indices`: the inverse of `permute`."""
    return _walk(indices, n, seed, epoch, inverse=True)


def digest_of(positions: Tensor, indices: Tensor, g: int) -> Digest:
    """Digest of samples that were consumed. It waits for the device twice."""
    gaps = positions.diff()
    ends = torch.stack([positions[0], gaps[0], gaps.min(), gaps.max()]).tolist() if len(gaps) else [0, 0, 0, 0]
    first, gap, least, most = ends
    if not 0 < gap == least == most:  # not as a shard's are, which costs a copy of all
        return digest.of(positions.cpu().numpy(), indices.cpu().numpy(), g)
    x = indices + 1
    x = (x & digest.P) + (x >> 61)
    powers = [x]
    for _ in range(digest.INDEX_POWERS - 1):
        powers.append(_multiply(powers[-1], x))
    halves = torch.stack([half.sum() for power in powers for half in (power & _LOW, power >> 32)]).tolist()
    sums = [(low + (high << 32)) % digest.P for low, high in zip(halves[::2], halves[1::2], strict=True)]
    of_positions = digest.expected(Progression(first, gap, len(positions)), g)
    return of_positions + Digest((*[0] * digest.OF_POSITIONS, *sums))


def _walk(values: Tensor, n: int, seed: int, epoch: int, *, inverse: bool) -> Tensor:
    if n == 1:
        return values
    values = _feistel(values, n, seed, epoch, inverse=inverse)
    while len(outside := (values >= n).nonzero().squeeze(1)):
        values[outside] = _feistel(values[outside], n, seed, epoch, inverse=inverse)
    return values


def _feistel(x: Tensor, n: int, seed: int, epoch: int, *, inverse: bool) -> Tensor:
    """shards._feistel."""
    half = ((n - 1).bit_length() + 1) // 2
    wide = -(-n // (1 << half))
    mask = (1 << half) - 1
    a, b = x & mask, x >> half
    sign = -1 if inverse else 1
    keys = [(number, int(key), int(odd)) for number, (key, odd) in enumerate(shards.round_keys(n, seed, epoch))]
    for number, key, odd in reversed(keys) if inverse else keys:
        if number % 2 == 0:
            a = (a + sign * (_scramble(b, key, odd) >> (32 - half))) & mask
        else:
            b = (b + sign * (_scramble(a, key, odd) * wide >> 32)) % wide
    return b << half | a


def _scramble(x: Tensor, key: int, odd: int) -> Tensor:
    x = (x ^ key) * odd & _LOW
    return (x ^ x >> 16) * 0x9E3779B1 & _LOW


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """digest._multiply."""
    a0, a1, b0, b1 = a & _LOW, a >> 32, b & _LOW, b >> 32
    middle, low = a1 * b0 + a0 * b1, a0 * b0
    whole = (a1 * b1 << 3) + (middle >> 29) + ((middle & (1 << 29) - 1) << 32)
    whole += (low >> 61 & 7) + (low & digest.P)
    return (whole & digest.P) + (whole >> 61)
