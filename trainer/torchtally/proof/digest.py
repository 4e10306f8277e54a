"""What was consumed, in twenty numbers: they add up over steps, ranks and restarts, in any order, at any n.

A sample index that was consumed goes back through the epoch's order to its position, and x = position + 1 enters the
power sums S_k = Σ xᵏ mod p, k = 0 … 15, p = 2⁶¹ - 1. A shard is an arithmetic progression of positions, so what its
sums should be has a closed form. The difference of the two are the syndromes of a Reed-Solomon code: up to 8 positions
that are lost or doubled, or up to 4 runs of them, can be read from it (Massey, "Shift-register synthesis and BCH
decoding", IEEE Trans. Inf. Theory 15, 1969), and no change of up to 16 positions can hide.

Larger changes can agree in all power sums (Prouhet, Tarry and Escott's problem), but hardly in G = Σ gˣ mod p too,
where g comes from the run's id. The sums of (index + 1)ᵏ, k = 1 … 3, over all ranks do not trust the order's inverse.

The epochs of a phase fold into one digest, Σ hᵉ · digest(e), where h comes from the run's id, too: what is lost in one
epoch and doubled in another does not cancel.
"""

import base64
import hashlib
import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from operator import mul

import numpy as np
import numpy.typing as npt

from torchtally.proof.shards import Indices, Order, Progression, permute

P = (1 << 61) - 1
POWERS = 16  # power sums of positions, k = 0 ... 15
OF_POSITIONS = POWERS + 1  # and G: the words that a single rank's shard has an expected value for
INDEX_POWERS = 3
WORDS = OF_POSITIONS + INDEX_POWERS
_PACKED = struct.Struct(f">{WORDS}Q")

Words = npt.NDArray[np.uint64]


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
        return base64.urlsafe_b64encode(_PACKED.pack(*self.words)).decode().rstrip("=")

    @property
    def of_positions(self) -> tuple[int, ...]:
        return self.words[:OF_POSITIONS]


@dataclass(frozen=True)
class Stretch:
    """Positions that were consumed `times` more often than they should have been; lost, if that is negative."""

    positions: Progression
    times: int


def parse(text: str) -> Digest:
    """The digest that `str` made into `text`. Raises ValueError for anything else."""
    return unpacked(packed(text))


def packed(text: str) -> bytes:
    """Its words, 8 bytes each: as few as there can be, as a verifier may hold a million. Raises ValueError likewise."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) != _PACKED.size or max(_PACKED.unpack(raw)) >= P:
        raise ValueError(f"a digest has {WORDS} numbers below 2**61 - 1")
    return raw


def unpacked(raw: bytes) -> Digest:
    """The digest of `packed`."""
    return Digest(_PACKED.unpack(raw))


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


def of(positions: Indices, indices: Indices, g: int) -> Digest:
    """Digest of samples that were consumed: their positions, and their indices in the same order. O(n)."""
    if len(positions) > 2 and (gaps := np.diff(positions))[0] > 0 and (gaps == gaps[0]).all():
        # As a shard's are. The closed form gives the same words at a tenth of the time.
        words = expected(Progression(int(positions[0]), int(gaps[0]), len(positions)), g).of_positions
    else:
        x = positions.astype(np.uint64) + np.uint64(1)
        words = (len(x), *_power_sums(x, POWERS - 1), _sum(_powers_of(g, x)))
    return Digest((*words, *[0] * INDEX_POWERS)) + _of_indices(indices)


def expected(shard: Progression, g: int) -> Digest:
    """Digest of the positions of `shard`, whose indices count for nothing. O(1)."""
    powers = [1]
    for _ in range(POWERS - 1):
        powers.append(powers[-1] * (shard.first + 1) % P)
    sums = [sum(map(mul, terms, powers)) % P for terms in _terms(shard.stride, shard.count)]
    return Digest((*sums, geometric(shard, g), *[0] * INDEX_POWERS))


@lru_cache(maxsize=64)  # the shards of all ranks have the same, and it is most of the work
def _terms(w: int, count: int) -> list[list[int]]:
    """Of Σ (a + w j)ᵏ over j < count, by the binomial theorem, for each k what is multiplied by a⁰, a¹, … aᵏ."""
    plain = [_power_sum(count, k) * pow(w, k, P) % P for k in range(POWERS)]
    return [[math.comb(k, i) * plain[i] % P for i in range(k, -1, -1)] for k in range(POWERS)]


def geometric(positions: Progression, g: int) -> int:
    """Σ gˣ mod p, x = position + 1. O(1)."""
    return pow(g, positions.first + 1, P) * _series(pow(g, positions.stride, P), positions.count) % P


@lru_cache(maxsize=64)
def _series(ratio: int, count: int) -> int:
    """Σ ratioʲ over j < count."""
    return (pow(ratio, count, P) - 1) * pow(ratio - 1, -1, P) if ratio != 1 else count


def contract(n: int, epoch: int, order: Order, seed: int, parts: list[Progression], g: int) -> Digest:
    """Digest of all ranks together; `parts` is shards.whole(). O(1), but for samples that are repeated or left out."""

    def of_indices(first: int, end: int) -> Digest:
        positions = np.arange(first, end, dtype=np.int64)
        return _of_indices(positions if order == "sequential" else permute(positions, n, seed, epoch))

    whole, *repeated = parts
    indices = expected(Progression(0, 1, n), g).words[1 : 1 + INDEX_POWERS]
    together = expected(whole, g) + Digest((*[0] * OF_POSITIONS, *indices)) - of_indices(whole.count, n)
    for part, times in Counter(repeated).items():  # with more ranks than samples there are many rounds, and alike
        together += (expected(part, g) + of_indices(0, part.count)) * times
    return together


def _of_indices(indices: Indices) -> Digest:
    """What `indices` add beside their positions."""
    return Digest((*[0] * OF_POSITIONS, *_power_sums(indices.astype(np.uint64) + np.uint64(1), INDEX_POWERS)))


def explain(difference: Digest, shard: Progression, n: int, g: int) -> list[Stretch] | None:
    """What was lost and doubled, where `difference` is what was consumed less what should have been.

    Up to 8 positions out of [0, n), or up to 4 runs of neighbours in `shard`. None if it is more than that.
    """
    if not any(difference.of_positions):
        return []
    for found in (_as_points(difference, n), _as_runs(difference, shard)):
        if found:
            together = sum((expected(run.positions, g) * run.times for run in found), Digest())
            if together.of_positions == difference.of_positions:
                return found
    return None


def _as_points(difference: Digest, n: int) -> list[Stretch] | None:
    points = _sparse(difference.words[:POWERS])
    if points is None or not all(1 <= x <= n for x in points):
        return None
    return [Stretch(Progression(x - 1, 1, 1), times) for x, times in sorted(points.items())]


def _as_runs(difference: Digest, shard: Progression) -> list[Stretch] | None:
    """Σ over a run of times · (vᵏ - uᵏ) = Σ_{j<k} C(k, j) S_j: its two ends are as few points as it has ends."""
    # y = 1, 2, 3, ... along the shard, so that its neighbours are neighbours.
    scale = pow(shard.stride, -1, P)
    shift = 1 - (shard.first + 1) * scale
    sums = [
        sum(math.comb(k, i) * pow(shift, k - i, P) * pow(scale, i, P) * difference.words[i] for i in range(k + 1)) % P
        for k in range(POWERS)
    ]
    ends = _sparse([sum(math.comb(k, j) * sums[j] for j in range(k)) % P for k in range(POWERS + 1)])
    if ends is None or not all(1 <= y <= shard.count + 1 for y in ends):
        return None
    runs, times = [], 0
    for u, v in pairwise(sorted(ends)):
        times -= ends[u]
        if times:
            runs.append(Stretch(Progression(shard.first + (u - 1) * shard.stride, shard.stride, v - u), times))
    return runs


def _sparse(sums: list[int] | tuple[int, ...]) -> dict[int, int] | None:
    """{x: c} with Σ c xᵏ = sums[k] for all k, of at most len(sums) // 2 points; None if there is none so small."""
    locator = _shortest_recurrence(sums)
    size = len(locator) - 1
    if not 0 < size <= len(sums) // 2 or not locator[-1]:
        return None
    roots = _roots(locator)
    if roots is None:
        return None
    from sympy import GF
    from sympy.polys.matrices import DomainMatrix

    field = GF(P)
    powers = DomainMatrix([[field(pow(x, k, P)) for x in roots] for k in range(size)], (size, size), field)
    right = DomainMatrix([[field(s)] for s in sums[:size]], (size, 1), field)
    times = [int(row[0]) % P for row in powers.lu_solve(right).to_list()]
    return {x: c if c < P // 2 else c - P for x, c in zip(roots, times, strict=True)}


def _shortest_recurrence(sums: list[int] | tuple[int, ...]) -> list[int]:
    """Massey's algorithm: c with c[0] = 1 and Σ c[i] sums[k - i] = 0 for all k >= len(c) - 1."""
    c, before, length, shift, gap = [1], [1], 0, 1, 1
    for k in range(len(sums)):
        off = sum(c[i] * sums[k - i] for i in range(min(length, len(c) - 1) + 1)) % P
        if off == 0:
            shift += 1
            continue
        factor = off * pow(gap, -1, P)
        longer = c + [0] * (len(before) + shift - len(c))
        for i, value in enumerate(before):
            longer[i + shift] = (longer[i + shift] - factor * value) % P
        if 2 * length <= k:
            length, before, gap, shift = k + 1 - length, c, off, 1
        else:
            shift += 1
        c = longer
    return c[: length + 1] + [0] * (length + 1 - len(c))


def _roots(polynomial: list[int]) -> list[int] | None:
    """All roots mod p of a polynomial (highest coefficient first), if they are as many as its degree."""
    from sympy import ZZ  # here: it takes a second to import, and a proof that holds needs none of it
    from sympy.polys import galoistools as gf

    monic = [ZZ(value) for value in polynomial]
    if not gf.gf_sqf_p(monic, P, ZZ):
        return None
    # Factors of degree 1 alone: those of gcd(xᵖ - x, polynomial).
    frobenius = gf.gf_pow_mod([ZZ(1), ZZ(0)], P, monic, P, ZZ)
    if gf.gf_rem(gf.gf_sub(frobenius, [ZZ(1), ZZ(0)], P, ZZ), monic, P, ZZ):
        return None
    return [int(-factor[1] % P) for factor in gf.gf_edf_zassenhaus(monic, 1, P, ZZ)]


def _power_sum(m: int, k: int) -> int:
    """Σ jᵏ over 0 <= j < m, mod p."""
    return sum(_stirling(k, s) * math.factorial(s) * math.comb(m, s + 1) for s in range(k + 1)) % P


@cache
def _stirling(k: int, s: int) -> int:
    """Stirling numbers of the second kind."""
    if k == s:
        return 1
    return s * _stirling(k - 1, s) + _stirling(k - 1, s - 1) if 0 < s < k else 0


def _power_sums(x: Words, highest: int) -> list[int]:
    """Σ xᵏ mod p for k = 1 ... highest."""
    if x.max(initial=0) > P:
        x = (x & np.uint64(P)) + (x >> np.uint64(61))  # mod p, up to 4 above it
    sums, power = [], x
    for k in range(1, highest + 1):
        power = x if k == 1 else _multiply(power, x)
        sums.append(_sum(power) % P)
    return sums


def _sum(values: Words) -> int:
    """Exact, of values below 2**63."""
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    return int(low.sum(dtype=np.uint64)) + (int(high.sum(dtype=np.uint64)) << 32)


def _multiply(a: Words, b: Words) -> Words:
    """a · b mod p, up to 4 above p, of factors up to 4 above p: 2⁶¹ is 1, in 32-bit halves."""
    half, low32, low29 = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64((1 << 29) - 1)
    a0, a1, b0, b1 = a & low32, a >> half, b & low32, b >> half
    middle, low = a1 * b0 + a0 * b1, a0 * b0
    whole: Words = (a1 * b1 << np.uint64(3)) + (middle >> np.uint64(29)) + ((middle & low29) << half)
    whole += (low >> np.uint64(61)) + (low & np.uint64(P))
    folded: Words = (whole & np.uint64(P)) + (whole >> np.uint64(61))
    return folded


_DIGIT = 12  # bits of an exponent that one table covers: 32 KB each


def _powers_of(g: int, x: Words) -> Words:
    bits = int(x.max(initial=1)).bit_length()
    tables = _tables(g)
    mask = np.uint64((1 << _DIGIT) - 1)
    result: Words = tables[0][x & mask]
    for digit in range(1, -(-bits // _DIGIT)):
        result = _multiply(result, tables[digit][x >> np.uint64(digit * _DIGIT) & mask])
    return result


@lru_cache(maxsize=4)
def _tables(g: int) -> list[Words]:
    """For each digit d of an exponent, g to the power of e · 2**(12 d) for every value e of it."""
    tables = []
    for _ in range(-(-61 // _DIGIT)):
        table = np.ones(1, dtype=np.uint64)
        step = g
        for _ in range(_DIGIT):
            table = np.concatenate([table, _multiply(table, np.array([step], dtype=np.uint64))])
            step = step * step % P
        tables.append(table)
        g = step
    return tables
