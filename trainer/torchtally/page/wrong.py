"""What is wrong with the samples of a rank: whether its line shows its whole shard, and which it lost or duplicated."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice

from torchtally.proof.line import TallyLine
from torchtally.proof.local_order import UnknownSizes
from torchtally.verifier import expected
from torchtally.verifier.problem import Block
from torchtally.verifier.verdict import Verdict

EXACT, DROPPED = "as planned", "as planned, some dropped"
WRONG, UNCHECKED = "lost or duplicated", "not checked"
_MOST_DECODED = 300  # lines: a digest that names many places takes its time
_MOST_PLACES = 2_000


@dataclass(frozen=True)
class Place:
    """Samples that a rank, or all together, consumed too seldom or too often: positions of an epoch's order."""

    line: TallyLine
    first: int
    last: int
    count: int
    times: int  # more often than planned; lost, if that is negative

    @property
    def kind(self) -> str:
        return "lost" if self.times < 0 else "duplicated"

    @property
    def what(self) -> str:
        more = f", {self.times} times too often" if self.times > 1 else ""
        return f"{self.count} {'sample' if self.count == 1 else 'samples'} {self.kind}{more}"

    @property
    def positions(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def samples(self) -> str:
        """The index of the sample, or those of the first and of the last."""
        ends = [self.first] if self.first == self.last else [self.first, self.last]
        return " … ".join(map(str, expected.samples(self.line, ends)))


def doubted(verdict: Verdict) -> Set[Block]:
    """The phases and epochs in which the verifier found a problem."""
    return frozenset(block for problem in verdict.problems for block in problem.blocks)


def state_of(line: TallyLine, doubts: Set[Block]) -> str:
    """Whether a line shows its whole shard, exactly; `doubts` are the `doubted` phases and epochs."""
    fine = DROPPED if line.dropped else EXACT
    if line.block not in doubts or expected.is_right(line):
        return fine
    if (line.lost, line.duplicated) != (0, 0):
        return WRONG
    try:
        difference = expected.difference(line)
    except UnknownSizes:
        return UNCHECKED
    if any(difference.words) or not line.expected == line.accounted == expected.size(line):
        return WRONG
    return UNCHECKED if line.rank == "all" else fine


def places(lines: Iterable[TallyLine]) -> Iterator[Place]:
    """Where these lines lost or duplicated samples, as far as their digests or they themselves name them.

    Not all, if they are too many for a page.
    """
    return islice((place for line in islice(lines, _MOST_DECODED) for place in _of_line(line)), _MOST_PLACES)


def _of_line(line: TallyLine) -> Iterator[Place]:
    try:
        stretches = expected.explain(line, expected.difference(line))
    except UnknownSizes:
        return
    for each in stretches or ():
        part = each.positions
        yield Place(line, part.first, part.first + (part.count - 1) * part.stride, part.count, each.times)
    if stretches is None:
        for times, indices in ((-1, line.lost_indices), (1, line.duplicated_indices)):
            inside = tuple(index for index in indices if 0 <= index < line.n)
            yield from (Place(line, each, each, 1, times) for each in expected.positions(line, inside))
