"""Which sample goes where: pure functions of (n, seed, epoch, rank, world, contract), with no torch and no state.

An epoch's order is a permutation of [0, n) that is computed, not stored: position -> sample index.
A shard is the arithmetic progression of positions r, r + world, r + 2 world, ... that rank r consumes. Where a phase is
taken up again at position `start`, what is left from there on is dealt afresh.

The permutation is an alternating Feistel network over A x B >= n (Black and Rogaway, "Ciphers with arbitrary
finite domains", CT-RSA 2002) with cycle walking: a result outside [0, n) is put through the network again.
It shuffles well and is not cryptographic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchtally.proof.contract import Contract

Order = Literal["feistel-1", "sequential"]

Indices = npt.NDArray[np.int64]
_MASK = (1 << 64) - 1
_BLOCK = 1 << 15  # indices a pass: the working set stays in the core's cache


@dataclass(frozen=True)
class Progression:
    """The positions first, first + stride, ..., `count` of them."""

    first: int
    stride: int
    count: int


def size(n: int, rank: int, world: int, contract: Contract, start: int = 0) -> int:
    """Samples in the shard of `rank` out of `world` ranks over the positions from `start` to `n`."""
    left = n - start
    match contract:
        case "exact":
            return max(0, -(-(left - rank) // world))
        case "padded":
            return -(-left // world)
        case "drop_last":
            return left // world


def total(n: int, world: int, contract: Contract, start: int = 0) -> int:
    """Samples that all ranks consume together from `start` on, repeats counted."""
    return n - start if contract == "exact" else world * size(n, 0, world, contract, start)


def steps(n: int, world: int, contract: Contract, batch: int, start: int = 0) -> int:
    """Steps of `batch` samples of all ranks together that all ranks make from `start` on."""
    return -(-total(n, world, contract, start) // batch)


def progressions(n: int, rank: int, world: int, contract: Contract, start: int = 0) -> list[Progression]:
    """The shard of `rank` as positions below `n`; only `padded` reaches past n, with its last sample."""
    own = size(n, rank, world, contract, start)
    below = min(own, size(n, rank, world, "exact", start))
    shard = [Progression(start + rank, world, below)]
    return shard if below == own else [*shard, Progression((start + rank + below * world) % n, world, 1)]


def whole(n: int, world: int, contract: Contract, start: int = 0) -> list[Progression]:
    """All positions of an epoch that was taken up at `start`: those before it, and all shards from there on."""
    ends = start + total(n, world, contract, start)
    # Beyond n `padded` starts again at 0, more than once where there are fewer samples than ranks.
    return [Progression(0, 1, min(n, ends - round)) for round in range(0, max(ends, 1), n)]


def positions(
    n: int, rank: int, world: int, contract: Contract, begin: int = 0, end: int | None = None, start: int = 0
) -> Indices:
    """Positions in the epoch's order of the shard's samples number `begin` to `end` (default: all of them)."""
    own = size(n, rank, world, contract, start)
    end = own if end is None else min(end, own)
    begin = min(begin, end)
    own_positions = np.arange(start + rank + world * begin, start + rank + world * end, world, dtype=np.int64)
    if len(own_positions) and own_positions[-1] >= n:  # of `padded` alone; to divide takes long
        own_positions %= n
    return own_positions


def indices(
    n: int,
    rank: int,
    world: int,
    contract: Contract,
    order: Order,
    seed: int,
    epoch: int,
    begin: int = 0,
    end: int | None = None,
    start: int = 0,
) -> Indices:
    """Sample indices of the shard's samples number `begin` to `end`, in the order in which they are consumed."""
    own = positions(n, rank, world, contract, begin, end, start)
    return own if order == "sequential" else _walk(own, n, seed, epoch, inverse=False)


def permute(positions: Indices, n: int, seed: int, epoch: int) -> Indices:
    """Sample indices at `positions` of the order of (n, seed, epoch): a bijection of [0, n), 1 <= n < 2**63."""
    return _walk(np.array(positions, dtype=np.int64), n, seed, epoch, inverse=False)


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
    """In place: memory that was never touched costs as much as the work in it."""
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
    # All is done in place: to allocate an array for each operation would take longer than they do.
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
            np.copyto(hashed, product, casting="unsafe")  # by so much is b moved, modulo B
            (np.subtract if inverse else np.add)(b, hashed, out=b)
            (np.add if inverse else np.subtract)(b, np.uint32(wide), out=other)
            np.minimum(b, other, out=b)  # of the two, one is below B; the other one is not, or has wrapped around
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
