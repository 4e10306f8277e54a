"""Which samples of one dataset the ranks hold, and which they were handed, in a pass."""

from dataclasses import dataclass

from torchtally.observed import sets
from torchtally.observed.causes import Lines
from torchtally.observed.line import Samples
from torchtally.observed.sets import Amount


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
    def doubled(self) -> Amount:
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
