"""The order of samples and their digest, computed by torch where the samples are: bit for bit as in proof/.

A GPU then waits for the CPU only once in many steps. torch computes in int64, which wraps around as 64-bit words do;
only its right shift differs, so no negative number is shifted here.
"""

import torch
from torch import Tensor

from torchtally.proof import digest, permutation
from torchtally.proof.digest import Digest
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.modular import P
from torchtally.proof.shards import Progression, Shard

_LOW = (1 << 32) - 1


def indices(shard: Shard, begin: int, end: int, device: torch.device) -> Tensor:
    """Sample indices of the shard's samples number `begin` to `end`, as Shard.indices."""
    end = min(end, shard.size)
    first, last = (shard.start + shard.rank + shard.world * number for number in (min(begin, end), end))
    positions = torch.arange(first, last, shard.world, device=device)
    if last > shard.n:  # of `padded` alone
        positions %= shard.n
    if isinstance(shard.order, LocalOrder):  # its tables are on the CPU
        return torch.from_numpy(shard.samples_at(positions.cpu().numpy())).to(device)
    return positions if shard.order == "sequential" else permute(positions, shard.n, shard.seed, shard.epoch)


def positions_of(indices: Tensor, shard: Shard) -> Tensor:
    """Positions of any samples in the epoch's order, as Shard.positions_of."""
    if isinstance(shard.order, LocalOrder):
        return torch.from_numpy(shard.positions_of(indices.cpu().numpy())).to(indices.device)
    return indices if shard.order == "sequential" else locate(indices, shard.n, shard.seed, shard.epoch)


def permute(positions: Tensor, n: int, seed: int, epoch: int) -> Tensor:
    """Sample indices at `positions` (int64) of the order of (n, seed, epoch)."""
    return _walk(positions, n, seed, epoch, inverse=False)


def locate(indices: Tensor, n: int, seed: int, epoch: int) -> Tensor:
    """Positions of `indices`: the inverse of `permute`."""
    return _walk(indices, n, seed, epoch, inverse=True)


def digest_of(positions: Tensor, indices: Tensor, g: int) -> Digest:
    """Digest of consumed samples, as digest.of_samples. It waits for the device twice."""
    gaps = positions.diff()
    ends = torch.stack([positions[0], gaps[0], gaps.min(), gaps.max()]).tolist() if len(gaps) else [0, 0, 0, 0]
    first, gap, least, most = ends
    if not 0 < gap == least == most:  # not in steps as a shard's are: they are copied to the CPU
        return digest.of_samples(positions.cpu().numpy(), indices.cpu().numpy(), g)
    x = indices + 1
    x = (x & P) + (x >> 61)
    powers = [x]
    for _ in range(digest.INDEX_POWERS - 1):
        powers.append(_multiply(powers[-1], x))
    halves = torch.stack([half.sum() for power in powers for half in (power & _LOW, power >> 32)]).tolist()
    sums = [(low + (high << 32)) % P for low, high in zip(halves[::2], halves[1::2], strict=True)]
    of_positions = digest.of_progression(Progression(first, gap, len(positions)), g)
    return of_positions + Digest((*[0] * digest.OF_POSITIONS, *sums))


def _walk(values: Tensor, n: int, seed: int, epoch: int, *, inverse: bool) -> Tensor:
    if n == 1:
        return values
    values = _feistel(values, n, seed, epoch, inverse=inverse)
    while len(outside := (values >= n).nonzero().squeeze(1)):
        values[outside] = _feistel(values[outside], n, seed, epoch, inverse=inverse)
    return values


def _feistel(x: Tensor, n: int, seed: int, epoch: int, *, inverse: bool) -> Tensor:
    """permutation._feistel."""
    half = ((n - 1).bit_length() + 1) // 2
    wide = -(-n // (1 << half))
    mask = (1 << half) - 1
    a, b = x & mask, x >> half
    sign = -1 if inverse else 1
    keys = [(number, int(key), int(odd)) for number, (key, odd) in enumerate(permutation.round_keys(n, seed, epoch))]
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
    """modular.multiply."""
    a0, a1, b0, b1 = a & _LOW, a >> 32, b & _LOW, b >> 32
    middle, low = a1 * b0 + a0 * b1, a0 * b0
    whole = (a1 * b1 << 3) + (middle >> 29) + ((middle & (1 << 29) - 1) << 32)
    whole += (low >> 61 & 7) + (low & P)
    return (whole & P) + (whole >> 61)
