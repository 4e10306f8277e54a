"""The order feistel-1: a permutation of [0, n) that is computed, not stored, as position -> sample index.

It is an alternating Feistel network over A x B >= n (Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002) with cycle walking: a result outside [0, n) passes through the network again. It shuffles well, and it is
not cryptographic.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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


class Domains:
    """Several orders side by side: domain k is permuted as by (sizes[k], seeds[k], epoch)."""

    def __init__(self, sizes: Indices, seeds: npt.NDArray[np.uint64], epoch: int):
        different, which = np.unique(sizes, return_inverse=True)
        shapes = np.array([_shape(n) for n in different.tolist()], dtype=np.int64).reshape(-1, 3)
        self._sizes, self._half, self._wide, self._rounds = sizes, *shapes.T[:, which]
        self._keys = [_key(words) for words in _words(seeds, epoch, int(self._rounds.max(initial=0)))]

    def permute(self, values: Indices, which: Indices, *, inverse: bool = False) -> None:
        """Permute each of `values` in its domain `which`, in place."""
        for at in range(0, len(values), _BLOCK):
            block, own = values[at : at + _BLOCK], which[at : at + _BLOCK]
            rounds = self._rounds[own]
            if (own == own[0]).all():  # as in long windows: numbers in place of arrays
                self._walk(block, own[0], int(rounds[0]), inverse=inverse)
            elif (rounds == rounds[0]).all():
                self._walk(block, own, int(rounds[0]), inverse=inverse)
            else:
                for number in np.unique(rounds).tolist():
                    some = np.flatnonzero(rounds == number)
                    chosen = block[some]
                    self._walk(chosen, own[some], number, inverse=inverse)
                    block[some] = chosen

    def _walk(self, values: Indices, at: Any, rounds: int, *, inverse: bool) -> None:
        n, keys = self._sizes[at], self._keys[:rounds]
        values[:] = _feistel(values, self._half[at], self._wide[at], keys, at, inverse=inverse)
        while (outside := np.flatnonzero(values >= n)).size:
            own = at[outside] if at.shape else at
            half, wide = self._half[own], self._wide[own]
            values[outside] = _feistel(values[outside], half, wide, keys, own, inverse=inverse)


def _walk(values: Indices, n: int, seed: int, epoch: int, *, inverse: bool) -> Indices:
    half, wide, rounds = _shape(n)
    keys = [_key(word) for word in _words(np.array([seed & _MASK], dtype=np.uint64), epoch, rounds)[:, 0]]
    for at in range(0, len(values) if n > 1 else 0, _BLOCK):
        block = values[at : at + _BLOCK]
        block[:] = _feistel(block, half, wide, keys, inverse=inverse)
        while (outside := np.flatnonzero(block >= n)).size:  # under 1 in sqrt(n) of them, so a few short passes
            block[outside] = _feistel(block[outside], half, wide, keys, inverse=inverse)
    return values


def _shape(n: int) -> tuple[int, int, int]:
    """log2 of A; B, at most 2**31; and the number of rounds."""
    half = ((n - 1).bit_length() + 1) // 2
    rounds = 24 if n < 4096 else 8 if n <= 1 << 32 else 6  # small domains need more to pass chi-square on neighbours
    return half, -(-n // (1 << half)), rounds


_Key = tuple[Any, Any]  # a word to xor and an odd multiplier: of one domain, or arrays of several


def _feistel(x: Indices, half: Any, wide: Any, keys: Sequence[_Key], at: Any = (), *, inverse: bool) -> Indices:
    """One pass over A x B with A = 2**half, x = b * A + a; even rounds move a by a hash of b, odd ones b by a's.

    `half` and `wide` are numbers, or have one for each of `x`. `at` picks those of `keys`.
    """
    half = np.asarray(half, dtype=np.int64)
    mask, rest = ((np.int64(1) << half) - 1).astype(np.uint32), (32 - half).astype(np.uint32)
    wide = np.asarray(wide, dtype=np.uint64)
    modulus = wide.astype(np.uint32)
    a, b = x.astype(np.uint32), (x >> half).astype(np.uint32)
    a &= mask
    # In place: to allocate an array for each operation would take longer than the operations.
    hashed, other, product = np.empty_like(a), np.empty_like(a), np.empty(len(x), np.uint64)
    numbered = list(enumerate(keys))
    for number, (key, odd) in reversed(numbered) if inverse else numbered:
        if number % 2 == 0:
            _scramble(b, key[at], odd[at], hashed, other)
            hashed >>= rest
            (np.subtract if inverse else np.add)(a, hashed, out=a)
            a &= mask
        else:
            _scramble(a, key[at], odd[at], hashed, other)
            np.multiply(hashed, wide, out=product)
            product >>= np.uint64(32)
            np.copyto(hashed, product, casting="unsafe")  # how far b moves, modulo B
            (np.subtract if inverse else np.add)(b, hashed, out=b)
            (np.add if inverse else np.subtract)(b, modulus, out=other)
            np.minimum(b, other, out=b)  # one of the two is below B; the other is not, or has wrapped around
    found: Indices = b.astype(np.int64)
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


def _words(seeds: npt.NDArray[np.uint64], epoch: int, rounds: int) -> npt.NDArray[np.uint64]:
    """For each round, a word of each seed's splitmix64 stream, which starts at (seed, epoch)."""
    start = np.uint64(0xD1342543DE82EF95) * (splitmix64(seeds) ^ np.uint64(epoch))
    numbers: npt.NDArray[np.uint64] = np.arange(rounds, dtype=np.uint64)[:, None]
    return splitmix64(start + numbers)


def _key(words: Any) -> _Key:
    """A word to xor and an odd multiplier."""
    return (words >> np.uint64(32)).astype(np.uint32), (words & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1)
