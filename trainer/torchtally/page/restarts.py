"""The restarts of a run: where in its training each began, and what had ended the attempt before."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torchtally.page.chart import Row
from torchtally.record.model import Attempt, Run, Snapshot


@dataclass(frozen=True, kw_only=True)
class Restart:
    number: int  # from 1
    attempt: Attempt  # that it began
    causes: tuple[str, ...]

    def row(self, n: int) -> Row:
        """As charts mark it. `n` is the number of samples in an epoch."""
        epoch, position = self.attempt.epoch, self.attempt.position
        return {
            "where": epoch + position / max(n, 1),
            "restart": self.number,
            "attempt": self.attempt.number,
            "position": f"epoch {epoch}, sample {position} of {n}",
            "cause": "; ".join(self.causes) or "not in these logs",
        }


def restarts(snapshot: Snapshot, run: Run) -> Iterator[Restart]:
    """Every start of the run after its first."""
    for number, (before, attempt) in enumerate(pairwise(run.attempts), 1):
        since, until = before.first or 0.0, attempt.first or 0.0
        causes = [
            f"{each.pod}: {each.cause or _unexplained(each.code)}"
            for each in snapshot.restarts
            if since <= each.time <= until and each.kind != "consequence"
        ]
        yield Restart(number=number, attempt=attempt, causes=tuple(causes))


def _unexplained(code: int | None) -> str:
    return "gone without a word" if code is None else f"exit code {code}"
