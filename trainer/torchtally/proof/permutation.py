"""The order of an epoch: a permutation of [0, n) that is computed, not stored, as position -> sample index.

It is an alternating Feistel network over A x B >= n (Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002) with cycle walking: a result outside [0, n) passes through the network again. It shuffles well, and it is
not cryptographic.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Order = Literal["feistel-1", "sequential"]
ORDERS: tuple[Order, ...] = get_args(Order)

Indices = npt.NDArray[np.int64]
_MASK = (1 << 64) - 1
_BLOCK = 1 << 15  # indices a pass: the working set stays in the core's cache


def permute(positions: Indices, n: int, seed: int, epoch: int) -> Indices:
    """Sample indices at `positions` of the order of (n, seed, epoch): a bijection of [0, n), 1 <= n < 2**63."""
    return permute_in_place(np.array(positions, dtype=np.int64), n, seed, epoch)


def permute_in_place(positions: Indices, n: int, seed: int, epoch: int) -> Indices:
    """`permute` without a copy: memory that was never touched costs as much as the work in it."""
    return _walk(positions, n, seed, epoch, inverse=False)


def locate(indices: Indices, n: int, seed: int, epoch: int) -> Indices:
    """Positions of `indices`: the inverse of `permute`."""
    return _walk(np.array(indices, dtype=np.int64), n, seed, epoch, inverse=True)


def splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One output of Steele, Lea and Flood's SplitMix generator (OOPSLA 2014) from each state in `x`."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _walk(values: Indices, n: int, seed: int, epoch: int, *, inverse: bool) -> Indices:
    for at in range(0, len(values) if n > 1 else 0, _BLOCK):
        block = values[at : at + _BLOCK]
        block[:] = _feistel(block, n, seed, epoch, inverse=inverse)
        while (outside := np.flatnonzero(block >= n)).size:  # under 1 in sqrt(n) of them, so a few short passes
            block[outside] = _feistel(block[outside], n, seed, epoch, inverse=inverse)
    return values


def _feistel(x: Indices, n: int, seed: int, epoch: int, *, inverse: bool) -> Indices:
    """One pass over A x B with A = 2**half, x = b * A + a; even rounds move a by a hash of b, odd ones b by a's."""
    half = ((n - 1).bit_length() + 1) // 2
    wide = -(-n // (1 << half))  # B, at most 2**31
    mask = np.uint32((1 << half) - 1)
    a, b = x.astype(np.uint32), (x >> half).astype(np.uint32)
    a &= mask
    # In place: to allocate an array for each operation would take longer than the operations.
    hashed, other, product = np.empty_like(a), np.empty_like(a), np.empty(len(x), np.uint64)
    keys = list(enumerate(round_keys(n, seed, epoch)))
    for number, (key, odd) in reversed(keys) if inverse else keys:
        if number % 2 == 0:
            _scramble(b, key, odd, hashed, other)
            hashed >>= np.uint32(32 - half)
            (np.subtract if inverse else np.add)(a, hashed, out=a)
            a &= mask
        else:
            _scramble(a, key, odd, hashed, other)
            np.multiply(hashed, np.uint64(wide), out=product)
            product >>= np.uint64(32)
            np.copyto(hashed, product, casting="unsafe")  # how far b moves, modulo B
            (np.subtract if inverse else np.add)(b, hashed, out=b)
            (np.add if inverse else np.subtract)(b, np.uint32(wide), out=other)
            np.minimum(b, other, out=b)  # one of the two is below B; the other is not, or has wrapped around
    found = b.astype(np.int64)
    found <<= half
    found |= a
    return found


_Words = npt.NDArray[np.uint32]


def _scramble(x: _Words, key: np.uint32, odd: np.uint32, out: _Words, other: _Words) -> None:
    """A hash of `x` into `out`; `other` is room for it."""
    np.bitwise_xor(x, key, out=out)
    out *= odd
    np.right_shift(out, np.uint32(16), out=other)
    out ^= other
    out *= np.uint32(0x9E3779B1)


def round_keys(n: int, seed: int, epoch: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """A word to xor and an odd multiplier a round, from a splitmix64 stream that starts at (seed, epoch)."""
    rounds = 24 if n < 4096 else 8 if n <= 1 << 32 else 6  # small domains need more to pass chi-square on neighbours
    start = splitmix64(np.array([seed & _MASK], dtype=np.uint64)) ^ np.uint64(epoch)
    stream = np.uint64(0xD1342543DE82EF95) * start + np.arange(rounds, dtype=np.uint64)
    for word in splitmix64(stream):  # type: ignore[arg-type]  # numpy's stubs take uint64 + uint64 for a float
        yield np.uint32(word >> np.uint64(32)), np.uint32(word & np.uint64(0xFFFFFFFF)) | np.uint32(1)
