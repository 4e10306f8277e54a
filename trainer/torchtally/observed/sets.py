"""Sets of samples, by the sums of their indices and a bit for each, or by the bits of a sketch."""

from collections.abc import Iterable
from math import isqrt

from torchtally.observed.line import Samples, Sums
from torchtally_observer.sketch import BITS


def looked(length: int) -> int:
    """Of how many samples of a base there are bits."""
    return min(length, BITS)


def whole(length: int) -> Samples:
    """All samples of a base, each once."""
    first = length * (length - 1) // 2
    second = length * (length - 1) * (2 * length - 1) // 6
    bits = looked(length)
    width = (bits + 7) // 8 * 8
    return Samples(count=length, sums=(first, second, first * first), bits=((1 << bits) - 1) << (width - bits))


def together(parts: Iterable[Samples]) -> Samples:
    """The samples of several ranks: their sums, and the bits of those that any rank has."""
    count, sums, bits = 0, (0, 0, 0), 0
    for each in parts:
        count += each.count
        sums = (sums[0] + each.sums[0], sums[1] + each.sums[1], sums[2] + each.sums[2])
        bits |= each.bits
    return Samples(count=count, sums=sums, bits=bits)


def more_than_once(parts: Iterable[Samples], twice: int = 0) -> int:
    """The bits of samples that several ranks have, and of those that are `twice` on one."""
    once, more = 0, twice
    for each in parts:
        more |= once & each.bits
        once |= each.bits
    return more


def equal(one: Samples, other: Samples) -> bool:
    """Whether these are the same samples, each as often."""
    return (one.count, one.sums, one.bits) == (other.count, other.sums, other.bits)


def few(more: Samples, fewer: Samples) -> list[int] | None:
    """The one or two samples that the first has and the second lacks; None where the sums do not tell."""
    count = more.count - fewer.count
    first, second, third = (a - b for a, b in zip(more.sums, fewer.sums, strict=True))
    return _roots(count, (first, second, third))


def _roots(count: int, sums: Sums) -> list[int] | None:
    """Whole numbers with these sums of their powers 1 to 3."""
    first, second, third = sums
    if count == 0:
        return [] if sums == (0, 0, 0) else None
    if count == 1:
        return [first] if (second, third) == (first**2, first**3) else None
    if count == 2 and (square := 2 * second - first**2) >= 0:
        low, high = (first - isqrt(square)) // 2, (first + isqrt(square)) // 2
        return [low, high] if (low + high, low**2 + high**2, low**3 + high**3) == sums else None
    return None
