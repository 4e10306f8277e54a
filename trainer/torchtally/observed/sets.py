"""Which samples were handed out: exact where the sums or the bits of all samples tell, else estimated by a sketch."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt, sqrt

from torchtally.observed.line import Samples, Sums
from torchtally_observer.sketch import BITS


@dataclass(frozen=True)
class Amount:
    """How many of `total` samples, by `hits` of the `looked` ones that were looked at."""

    hits: int
    looked: int
    total: int

    @property
    def exact(self) -> bool:
        return self.looked >= self.total

    @property
    def share(self) -> float:
        return self.hits / self.looked if self.looked else 0.0

    @property
    def error(self) -> float:
        """Two standard errors of the share; for none or all of them, by the rule of three."""
        if self.exact or not self.looked:
            return 0.0
        p = self.share
        return 3 / self.looked if p in (0.0, 1.0) else 2 * sqrt(p * (1 - p) / self.looked)

    @property
    def count(self) -> int:
        return round(self.share * self.total)

    def __str__(self) -> str:
        if self.exact:
            return f"{self.hits} of {self.total} samples"
        if not self.hits:
            return "none of the samples that were looked at"
        error = max(1, round(100 * self.error))
        share = f"{100 * self.share:.0f}" if self.share >= 0.01 else "less than 1"
        return f"about {share} % (± {error}) of the samples"

    @property
    def cell(self) -> str:
        """For a table."""
        return str(self.hits) if self.exact else f"~{self.count}" if self.hits else "0?"


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
