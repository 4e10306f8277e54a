"""What a judgement comes to, and the exit status that tells it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """From the best to the worst."""

    PROVED = "proved"
    OBSERVED = "observed"  # a program that keeps no account: no fault was seen in what it was handed out
    INCOMPLETE = "incomplete"  # nothing contradicts, but lines are missing
    PENDING = "pending"  # so far: the job in the cluster has not ended
    FAILED = "failed"  # for good: the job in the cluster has failed
    FAULTY = "faulty"  # observed: samples are lost, duplicated, or tested and trained on
    DISPROVED = "disproved"  # lines contradict the contract or each other

    @property
    def status(self) -> int:
        return _STATUS[self]


_STATUS = {  # 2 is bad input
    Outcome.PROVED: 0,
    Outcome.OBSERVED: 0,
    Outcome.FAULTY: 1,
    Outcome.DISPROVED: 1,
    Outcome.INCOMPLETE: 3,
    Outcome.PENDING: 4,
    Outcome.FAILED: 5,
}


@dataclass(frozen=True)
class Unsuccessful:
    """A job in the cluster that has not succeeded: why lines of a run may be missing."""

    outcome: Outcome  # PENDING or FAILED
    sentence: str


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    return max(outcomes, key=list(Outcome).index)
