"""The tally lines of a phase of one epoch, summed up: of a rank without a fault, one bit is kept."""

from collections.abc import Iterator

from torchtally.proof.line import Attempt, TallyLine
from torchtally.record.model import EpochProof, RankProof


class Block:
    """The lines of one attempt about one phase of one epoch."""

    def __init__(self, line: TallyLine) -> None:
        self.first = line  # has all that ranks have in common
        self._seen = 0  # ranks, as bits
        self._wrong: dict[int, RankProof] = {}
        self._all: TallyLine | None = None

    def add(self, line: TallyLine) -> None:
        """A line that was read before changes nothing."""
        if line.rank == "all":
            if self._all is None or (line.lost, line.doubled) != (0, 0):
                self._all = line
            return
        self._seen |= 1 << line.rank
        if (line.lost, line.doubled) != (0, 0):
            self._wrong[line.rank] = RankProof(
                rank=line.rank,
                pod=line.pod,
                expected=line.expected,
                consumed=line.consumed,
                lost=line.lost,
                doubled=line.doubled,
                lost_indices=line.lost_indices,
                doubled_indices=line.doubled_indices,
            )

    def proof(self, time: float | None, event: bool | None, superseded: bool) -> EpochProof:
        """What the lines state, beside an event `proved` at this time."""
        line, everything = self.first, self._all
        return EpochProof(
            attempt=line.attempt,
            began=line.began,
            superseded=superseded,
            phase=line.phase,
            epoch=line.epoch,
            world=line.world,
            n=line.n,
            start=line.start,
            end=line.end,
            contract=line.contract,
            time=time,
            holds=self._holds(event),
            expected=everything.expected if everything else None,
            consumed=everything.consumed if everything else None,
            dropped=(everything.dropped or 0) if everything else 0,
            lost=everything.lost if everything else None,
            doubled=everything.doubled if everything else None,
            lost_indices=everything.lost_indices if everything else (),
            doubled_indices=everything.doubled_indices if everything else (),
            ranks=self._seen.bit_count(),
            missing=tuple(self._missing()),
            wrong=tuple(self._wrong[rank] for rank in sorted(self._wrong)),
        )

    @property
    def attempt(self) -> Attempt:
        return self.first.attempt_began

    def _holds(self, event: bool | None) -> bool | None:
        if self._wrong or event is False:
            return False
        return None if self._all is None else (self._all.lost, self._all.doubled) == (0, 0)

    def _missing(self) -> Iterator[tuple[int, int]]:
        """Runs of ranks that no line is of."""
        left, rank = ~self._seen & ((1 << self.first.world) - 1), 0
        while left:
            skipped = (left & -left).bit_length() - 1  # lines of these ranks have come
            left >>= skipped
            length = (~left & (left + 1)).bit_length() - 1
            yield rank + skipped, rank + skipped + length - 1
            left >>= length
            rank += skipped + length
