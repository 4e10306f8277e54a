"""The digest of consumed samples: twenty numbers mod p that add up over steps, ranks and restarts, for any n.

A consumed sample's index is mapped back through the epoch's order to its position, and x = position + 1 enters the
power sums S_k = Σ xᵏ mod p, k = 0 … 15, p = 2⁶¹ - 1. A shard is an arithmetic progression of positions, so its sums
have a closed form. No change of up to 16 positions can hide, and decoder.py names smaller ones.

Larger changes can agree in all power sums (Prouhet, Tarry and Escott's problem), but hardly in G = Σ gˣ mod p too,
where g comes from the run's id. The sums of (index + 1)ᵏ, k = 1 … 3, over all ranks do not rely on the order's inverse.

The epochs of a phase fold into one digest, Σ hᵉ · digest(e), where h comes from the run's id, too: a sample that is
lost in one epoch and duplicated in another does not cancel out.
"""

import base64
import binascii
import hashlib
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

import numpy as np

from torchtally.proof.modular import (
    P,
    Words,
    exact_sum,
    geometric_series,
    multiply,
    power_sum,
    power_sums,
    powers_of,
)
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Progression, Shard

POWERS = 16  # power sums of positions, k = 0 ... 15
OF_POSITIONS = POWERS + 1  # and G: the words that a single rank's shard has an expected value for
INDEX_POWERS = 3
WORDS = OF_POSITIONS + INDEX_POWERS
NAMES = (*(f"S_{k}" for k in range(POWERS)), "G", *(f"I_{k + 1}" for k in range(INDEX_POWERS)))
_BLOCK = 1 << 15  # indices at a time: an epoch may end after any number of them
_FEW = 32  # progressions, for which Python's numbers are faster than arrays
_PACKED = struct.Struct(f">{WORDS}Q")
_TEXT = re.compile(r"[A-Za-z0-9_-]{213}[AQgw]")  # 20 * 64 bits in base64: the last 4 of 214 * 6 are 0
_ONES = int.from_bytes(_PACKED.pack(*[1] * WORDS), "big")  # in each word
_FROM_2_61 = 7 * _ONES << 61  # the bits of each word that no number below 2**61 has


@dataclass(frozen=True)
class Digest:
    """Numbers mod p: S_0 … S_15, G, and the sums of (index + 1), its square and its cube."""

    words: tuple[int, ...] = (0,) * WORDS

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(tuple((a + b) % P for a, b in zip(self.words, other.words, strict=True)))

    def __sub__(self, other: "Digest") -> "Digest":
        return Digest(tuple((a - b) % P for a, b in zip(self.words, other.words, strict=True)))

    def __mul__(self, times: int) -> "Digest":
        return Digest(tuple(word * times % P for word in self.words))

    def __str__(self) -> str:
        """The words, 8 bytes each with the high one first, in base64 for URLs and without padding."""
        return as_text(self.packed)

    @property
    def of_positions(self) -> tuple[int, ...]:
        """S_0 … S_15 and G."""
        return self.words[:OF_POSITIONS]

    @property
    def packed(self) -> bytes:
        """The words, 8 bytes each: a verifier may hold a million digests."""
        return _PACKED.pack(*self.words)


def parse(text: str) -> Digest:
    """The digest that `str` made into `text`. Raises ValueError for anything else."""
    return unpack(pack(text))


@lru_cache(maxsize=8)  # a line's is packed where it is checked, and where it is held
def pack(text: str) -> bytes:
    """The `packed` of the digest with this text. Raises ValueError as `parse` does."""
    plain = text.replace("-", "+").replace("_", "/")
    raw = binascii.a2b_base64(f"{plain}==") if _TEXT.fullmatch(text) else b""
    words = int.from_bytes(raw, "big")
    if not raw or (words | words + _ONES) & _FROM_2_61:
        raise ValueError(f"a digest has {WORDS} numbers below 2**61 - 1")
    return raw


def is_one(text: str) -> bool:
    """Whether it is the text of a digest."""
    try:
        return bool(pack(text))
    except ValueError:
        return False


def unpack(raw: bytes) -> Digest:
    """The digest with this `packed`."""
    return Digest(_PACKED.unpack(raw))


def as_text(raw: bytes) -> str:
    """The text of the digest with this `packed`."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@lru_cache
def base(run: str) -> int:
    """The g of a run's id."""
    return 2 + int.from_bytes(hashlib.sha256(run.encode()).digest(), "big") % (P - 2)


def base_of_epochs(run: str) -> int:
    """The h of a run's id."""
    return base(f"{run} epochs")


def fold(epochs: Iterable[tuple[int, Digest]], run: str) -> Digest:
    """The digests of a phase's epochs, each with its number, in one."""
    h = base_of_epochs(run)
    return sum((each * pow(h, epoch, P) for epoch, each in epochs), Digest())


def of_samples(positions: Indices, indices: Indices, g: int) -> Digest:
    """Digest of consumed samples: their positions, and their indices in the same order. O(n)."""
    if len(positions) > 2 and (gaps := np.diff(positions))[0] > 0 and (gaps == gaps[0]).all():
        # As a shard's are. The closed form gives the same words at a tenth of the time.
        words = of_progression(Progression(int(positions[0]), int(gaps[0]), len(positions)), g).of_positions
    else:
        x = positions.astype(np.uint64) + np.uint64(1)
        words = (len(x), *power_sums(x, POWERS - 1), exact_sum(powers_of(g, x)))
    return Digest((*words, *[0] * INDEX_POWERS)) + _of_indices(indices)


def of_progression(positions: Progression, g: int) -> Digest:
    """Digest of positions alone: the sums of their indices are 0. O(1)."""
    powers = [1]
    for _ in range(POWERS - 1):
        powers.append(powers[-1] * (positions.first + 1) % P)
    sums = [sum(map(mul, terms, powers)) % P for terms in _terms(positions.stride, positions.count)]
    return Digest((*sums, geometric(positions, g), *[0] * INDEX_POWERS))


def of_progressions(first: Words, stride: int, count: int, g: int) -> Words:
    """The words of `of_progression(...).of_positions` for each of these first positions, as a row."""
    if len(first) < _FEW:
        each = [of_progression(Progression(int(one), stride, count), g).of_positions for one in first]
        return np.array(each, dtype=np.uint64).reshape(len(first), OF_POSITIONS)
    x = first + np.uint64(1)
    a, words = x % np.uint64(P), []
    for *lower, highest in _terms(stride, count):
        total = np.full_like(a, highest)
        for factor in reversed(lower):
            total = multiply(total, a) + np.uint64(factor)
            total = (total & np.uint64(P)) + (total >> np.uint64(61))  # mod p, up to 2 above it
        words.append(total)
    series = geometric_series(pow(g, stride, P), count) % P
    words.append(multiply(powers_of(g, x), np.full_like(x, series)))
    return np.stack(words, axis=1) % np.uint64(P)


@lru_cache(maxsize=64)  # the shards of all ranks have the same, and it is most of the work
def _terms(w: int, count: int) -> list[list[int]]:
    """Of Σ (a + w j)ᵏ over j < count, by the binomial theorem: for each k the factors of a⁰, a¹, … aᵏ."""
    plain = [power_sum(count, k) * pow(w, k, P) % P for k in range(POWERS)]
    return [[math.comb(k, i) * plain[i] % P for i in range(k, -1, -1)] for k in range(POWERS)]


def geometric(positions: Progression, g: int) -> int:
    """Σ gˣ mod p, x = position + 1. O(1)."""
    return pow(g, positions.first + 1, P) * geometric_series(pow(g, positions.stride, P), positions.count) % P


def of_all_ranks(shard: Shard, g: int) -> Digest:
    """Digest of an epoch that all ranks consume as `shard.contract` says, up to `shard.end`.

    O(1), except for samples that are repeated or left out. So are those after an end, or fewer before.
    """

    def of_indices(first: int, end: int) -> Digest:
        blocks = (np.arange(at, min(at + _BLOCK, end), dtype=np.int64) for at in range(first, end, _BLOCK))
        return sum((_of_indices(shard.samples_at(block)) for block in blocks), Digest())

    def of_lap(lap: Progression) -> Digest:
        if 2 * lap.count < shard.n:  # the shorter part is added up
            return of_progression(lap, g) + of_indices(0, lap.count)
        indices = of_progression(Progression(0, 1, shard.n), g).words[1 : 1 + INDEX_POWERS]
        return of_progression(lap, g) + Digest((*[0] * OF_POSITIONS, *indices)) - of_indices(lap.count, shard.n)

    return sum((of_lap(lap) * times for lap, times in shard.everything.items()), Digest())


def _of_indices(indices: Indices) -> Digest:
    """The words that `indices` add beside their positions'."""
    return Digest((*[0] * OF_POSITIONS, *power_sums(indices.astype(np.uint64) + np.uint64(1), INDEX_POWERS)))
