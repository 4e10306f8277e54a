"""Arithmetic mod the Mersenne prime p = 2⁶¹ - 1: closed forms for sums over progressions, and sums over arrays."""

import math
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

P = (1 << 61) - 1

Words = npt.NDArray[np.uint64]


def power_sum(m: int, k: int) -> int:
    """Σ jᵏ mod p over 0 <= j < m. O(k²), by Stirling numbers."""
    return sum(_stirling(k, s) * math.factorial(s) * math.comb(m, s + 1) for s in range(k + 1)) % P


@cache
def _stirling(k: int, s: int) -> int:
    """Stirling numbers of the second kind."""
    if k == s:
        return 1
    return s * _stirling(k - 1, s) + _stirling(k - 1, s - 1) if 0 < s < k else 0


@lru_cache(maxsize=64)
def geometric_series(ratio: int, count: int) -> int:
    """Σ ratioʲ mod p over 0 <= j < count."""
    return (pow(ratio, count, P) - 1) * pow(ratio - 1, -1, P) if ratio != 1 else count


def power_sums(x: Words, highest: int) -> list[int]:
    """Σ xᵏ mod p over an array, for k = 1 ... highest."""
    most = int(x.max(initial=0))
    if most > P:
        x = (x & np.uint64(P)) + (x >> np.uint64(61))  # mod p, up to 4 above it
    sums, power = [], x
    for k in range(1, highest + 1):
        if k > 1:
            power = power * x if most**k <= P else multiply(power, x)
        sums.append(exact_sum(power) % P)
    return sums


def exact_sum(values: Words) -> int:
    """Σ of values below 2**63, which would overflow 64 bits."""
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    return int(low.sum(dtype=np.uint64)) + (int(high.sum(dtype=np.uint64)) << 32)


def multiply(a: Words, b: Words) -> Words:
    """a · b mod p, up to 4 above p, of factors up to 4 above p: 2⁶¹ is 1, in 32-bit halves."""
    half, low32, low29 = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64((1 << 29) - 1)
    a0, a1, b0, b1 = a & low32, a >> half, b & low32, b >> half
    middle, low = a1 * b0 + a0 * b1, a0 * b0
    whole: Words = (a1 * b1 << np.uint64(3)) + (middle >> np.uint64(29)) + ((middle & low29) << half)
    whole += (low >> np.uint64(61)) + (low & np.uint64(P))
    folded: Words = (whole & np.uint64(P)) + (whole >> np.uint64(61))
    return folded


_DIGIT = 12  # bits of an exponent that one table covers: 32 KB each


def powers_of(g: int, x: Words) -> Words:
    """gˣ mod p for each x of an array, up to 4 above p."""
    bits = int(x.max(initial=1)).bit_length()
    tables = _tables(g)
    mask = np.uint64((1 << _DIGIT) - 1)
    result: Words = tables[0][x & mask]
    for digit in range(1, -(-bits // _DIGIT)):
        result = multiply(result, tables[digit][x >> np.uint64(digit * _DIGIT) & mask])
    return result


@lru_cache(maxsize=4)
def _tables(g: int) -> list[Words]:
    """For each digit d of an exponent, g to the power of e · 2**(12 d) for every value e of it."""
    tables = []
    for _ in range(-(-61 // _DIGIT)):
        table = np.ones(1, dtype=np.uint64)
        step = g
        for _ in range(_DIGIT):
            table = np.concatenate([table, multiply(table, np.array([step], dtype=np.uint64))])
            step = step * step % P
        tables.append(table)
        g = step
    return tables
