"""Which positions were lost or duplicated, read from the difference of two digests.

The differences of the power sums S_0 ... S_15 are the syndromes of a Reed-Solomon code (Massey, "Shift-register
synthesis and BCH decoding", IEEE Trans. Inf. Theory 15, 1969): up to 8 positions, or up to 4 runs of neighbours, can be
read from them.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchtally.proof import digest
from torchtally.proof.digest import POWERS, Digest
from torchtally.proof.modular import P, multiply
from torchtally.proof.shards import Progression

_SEARCHED = 1 << 17  # positions that are tried one by one, in the time of one factorization


@dataclass(frozen=True)
class Stretch:
    """Positions that were consumed `times` more often than they should have been; lost, if that is negative."""

    positions: Progression
    times: int


def explain(difference: Digest, shard: Progression, n: int, g: int) -> list[Stretch] | None:
    """The lost and duplicated positions, from the digest of the consumed ones minus that of the expected ones.

    Up to 8 positions out of [0, n), or up to 4 runs of neighbours in `shard`. None if there are more. Needs sympy.
    """
    if not any(difference.of_positions):
        return []
    for found in (_as_points(difference, n), _as_runs(difference, shard)):
        if found:
            together = sum((digest.of_progression(run.positions, g) * run.times for run in found), Digest())
            if together.of_positions == difference.of_positions:
                return found
    return None


def _as_points(difference: Digest, n: int) -> list[Stretch] | None:
    points = _sparse(difference.words[:POWERS], n)
    if points is None:
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
    ends = _sparse([sum(math.comb(k, j) * sums[j] for j in range(k)) % P for k in range(POWERS + 1)], shard.count + 1)
    if ends is None:
        return None
    runs, times = [], 0
    for u, v in pairwise(sorted(ends)):
        times -= ends[u]
        if times:
            runs.append(Stretch(Progression(shard.first + (u - 1) * shard.stride, shard.stride, v - u), times))
    return runs


def _sparse(sums: list[int] | tuple[int, ...], highest: int) -> dict[int, int] | None:
    """{x: c} with Σ c xᵏ = sums[k] for all k, of at most len(sums) // 2 points x from 1 to `highest`.

    None if there is no such set of points.
    """
    locator = _shortest_recurrence(sums)
    size = len(locator) - 1
    if not 0 < size <= len(sums) // 2 or not locator[-1]:
        return None
    roots = _search(locator, highest) if highest <= _SEARCHED else _roots(locator)
    if len(roots) < size or not all(1 <= x <= highest for x in roots):
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


def _search(polynomial: list[int], highest: int) -> list[int]:
    """Its roots mod p (highest coefficient first) from 1 to `highest`, by trying each.

    Chien, "Cyclic decoding procedures for Bose-Chaudhuri-Hocquenghem codes", IEEE Trans. Inf. Theory 10, 1964.
    """
    x = np.arange(1, highest + 1, dtype=np.uint64)
    value = np.zeros_like(x)
    for coefficient in polynomial:
        value = (multiply(value, x) + np.uint64(coefficient)) % np.uint64(P)
    return [int(root) for root in x[value == 0]]


def _roots(polynomial: list[int]) -> list[int]:
    """All roots mod p of a polynomial (highest coefficient first), if they are as many as its degree; or none."""
    from sympy import ZZ  # here: it takes a second to import, and a proof that holds needs none of it
    from sympy.polys import galoistools as gf

    monic = [ZZ(value) for value in polynomial]
    if not gf.gf_sqf_p(monic, P, ZZ):
        return []
    # Factors of degree 1 alone: those of gcd(xᵖ - x, polynomial).
    frobenius = gf.gf_pow_mod([ZZ(1), ZZ(0)], P, monic, P, ZZ)
    if gf.gf_rem(gf.gf_sub(frobenius, [ZZ(1), ZZ(0)], P, ZZ), monic, P, ZZ):
        return []
    return [int(-factor[1] % P) for factor in gf.gf_edf_zassenhaus(monic, 1, P, ZZ)]
