"""What a job comes to, and the exit status that tells it: those of `torchtally verify`, and what only a job tells."""

from enum import StrEnum

from torchtally.cluster.job_kinds import ClusterJob
from torchtally.verifier.outcome import Outcome


class Standing(StrEnum):
    PROVED = "proved"
    OBSERVED = "observed"  # it keeps no account
    FAULTY = "faulty"  # observed, with a fault
    DISPROVED = "disproved"
    INCOMPLETE = "incomplete"  # it has ended, or is a log, and lines are missing
    PENDING = "pending"  # queued, suspended, or starting
    FAILED = "failed"
    RUNNING = "running"  # or restarting

    @property
    def status(self) -> int:
        return _STATUS[self]


_STATUS = {Standing.RUNNING: 6} | {Standing(each): each.status for each in Outcome}


def of(outcome: Outcome, job: ClusterJob | None) -> Standing:
    """By the verifier's word about the job's logs."""
    if outcome is Outcome.PENDING and job and job.progress in ("running", "restarting"):
        return Standing.RUNNING
    return Standing(outcome)
