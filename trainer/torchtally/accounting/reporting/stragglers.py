"""Which pod is slower than the others, and in what, by the times of all ranks.

Ranks that step together are all as slow as the slowest: the others wait for it. What a rank does itself, apart from its
waits for others, shows which one that is. A slow link makes all ranks wait alike, and a message to rank 0 shows whose
it is.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchtally.events import Straggler

FACTOR = 1.5  # times the median of the other pods: from there on a pod is slower than they are
LINK_FACTOR, LINK_SECONDS = 3.0, 0.005  # the same for a message to rank 0 and back, which takes at least so long
WAITING = 0.2  # the share of a step in communication, below which a slow link costs nothing


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Of a rank since the last meeting: seconds a step, and of a message to rank 0 and back."""

    rank: int
    pod: str
    data_wait: float
    compute: float
    communication: float
    trip: float

    @property
    def own(self) -> float:
        return self.data_wait + self.compute


def find(ranks: Iterable[RankTimes]) -> Straggler | None:
    """The pod that is slower than the others, if there is one. Rank 0 comes first."""
    pods: dict[str, list[RankTimes]] = {}
    for each in ranks:
        pods.setdefault(each.pod, []).append(each)
    if len(pods) < 2:
        return None
    return _by_own_time({pod: max(own, key=lambda each: each.own) for pod, own in pods.items()}) or _by_link(pods)


def _by_own_time(slowest_ranks: Mapping[str, RankTimes]) -> Straggler | None:
    slowest = max(slowest_ranks.values(), key=lambda each: each.own)
    others = [each for each in slowest_ranks.values() if each is not slowest]
    if slowest.own <= FACTOR * statistics.median(each.own for each in others):
        return None
    usual = {part: statistics.median(getattr(each, part) for each in others) for part in ("data_wait", "compute")}
    loses_in = max(usual, key=lambda part: getattr(slowest, part) - usual[part])
    return _straggler(slowest, loses_in, getattr(slowest, loses_in), usual[loses_in])


def _by_link(pods: Mapping[str, list[RankTimes]]) -> Straggler | None:
    everyone = [each for own in pods.values() for each in own]
    if statistics.median(each.communication / max(each.own + each.communication, 1e-9) for each in everyone) < WAITING:
        return None
    _, *remote = (min(own, key=lambda each: each.trip) for own in pods.values())  # without the pod of rank 0
    slowest = max(remote, key=lambda each: each.trip)
    others = [each.trip for each in remote if each is not slowest]
    usual = statistics.median(others) if others else None
    if slowest.trip < max(LINK_SECONDS, LINK_FACTOR * (usual or 0.0)):
        return None
    return _straggler(slowest, "communication", slowest.trip, usual)


def _straggler(of: RankTimes, loses_in: str, seconds: float, others: float | None) -> Straggler:
    usual = None if others is None else round(others, 6)
    return Straggler(slow=of.pod, slow_rank=of.rank, loses_in=loses_in, seconds=round(seconds, 6), others=usual)
