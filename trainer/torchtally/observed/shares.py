"""Which samples of one dataset the ranks hold, and which they were handed, in a pass.

Exact where the sums or the bits of all samples tell, and else estimated by a sketch, with an error.
"""

from dataclasses import dataclass
from math import sqrt

from torchtally.observed import sets
from torchtally.observed.causes import Lines
from torchtally.observed.line import Samples


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


@dataclass(frozen=True)
class Shares:
    """The samples of a pass over one base, of which each rank holds all, or a part."""

    handed: dict[int, Samples]
    held: dict[int, Samples]  # what each rank's dataset holds
    length: int  # of the base
    twice: int  # bits of samples that one rank was handed twice

    @classmethod
    def of(cls, lines: Lines) -> "Shares | None":
        handed = {rank: line.handed for rank, line in lines.items() if line.handed}
        length = next((line.base.length for line in lines.values() if line.base), None)
        if len(handed) != len(lines) or length is None:
            return None
        everything = sets.whole(length)
        twice = 0
        for line in lines.values():
            twice |= line.twice
        return cls(handed, {rank: line.holds or everything for rank, line in lines.items()}, length, twice)

    @property
    def all_handed(self) -> Samples:
        return sets.together(self.handed.values())

    @property
    def all_held(self) -> Samples:
        """What the ranks hold together: each sample once, if they hold the same or disjoint parts."""
        parts = [*self.held.values()]
        if self.one_part:
            return parts[0]
        return sets.together(parts)

    @property
    def one_part(self) -> bool:
        """Whether all ranks hold the same samples."""
        first, *others = self.held.values()
        return all(sets.equal(first, other) for other in others)

    @property
    def parts_overlap(self) -> Amount:
        return self.amount(sets.more_than_once(self.held.values()), self.all_held.bits)

    @property
    def lost(self) -> Amount:
        held = self.all_held.bits
        return self.amount(held & ~self.all_handed.bits, held)

    @property
    def duplicated(self) -> Amount:
        more = sets.more_than_once(self.handed.values(), self.twice)
        return self.amount(more, self.all_held.bits)

    @property
    def size(self) -> int:
        """How many samples there are to hand out."""
        if self.one_part or not self.parts_overlap.hits:
            return self.all_held.count
        looked = sets.looked(self.length)
        return round(self.all_held.bits.bit_count() / looked * self.length)

    @property
    def once(self) -> bool:
        """Whether each sample was handed out exactly once: by sums, whatever the order."""
        whole = sets.whole(self.length)
        if self.one_part:
            return sets.equal(self.all_handed, self.all_held)
        if sets.equal(self.all_held, whole):
            return sets.equal(self.all_handed, whole)
        exact = self.length <= sets.looked(self.length)  # larger parts may overlap in what is not looked at
        return exact and not self.parts_overlap.hits and sets.equal(self.all_handed, self.all_held)

    @property
    def times(self) -> int | None:
        """How often each sample was handed out; None where not all were as often."""
        held, handed = self.all_held, self.all_handed
        times = handed.count // max(1, held.count)
        first, second, third = (times * each for each in held.sums)
        expected = Samples(count=times * held.count, sums=(first, second, third), bits=held.bits)
        return times if sets.equal(handed, expected) else None

    def unheld(self, elsewhere: int) -> Amount:
        """Samples that no rank holds, nor any other loader."""
        everything = sets.whole(self.length).bits
        return self.amount(everything & ~self.all_held.bits & ~elsewhere, everything)

    def amount(self, bits: int, of: int) -> Amount:
        exact = self.length <= sets.looked(self.length)
        looked = of.bit_count()
        total = looked if exact else max(looked + 1, round(looked / sets.looked(self.length) * self.length))
        return Amount(bits.bit_count(), looked, total)
