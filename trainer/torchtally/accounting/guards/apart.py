"""Ranks that train models of their own: after a step, no parameter that was compared is equal on both."""

import zlib
from collections.abc import Mapping
from typing import Any

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.tally import Membership
from torchtally.accounting.ledger.weights import Weights, class_of
from torchtally.checkpoints import conditions

_INSTEAD = (
    "average the gradients over all ranks in each step, as DistributedDataParallel does; where that is meant, as for "
    "experts of each rank, or for weights that are averaged after steps, account.optimizer(optimizer, replicated=False)"
)


class Apart(Guard):
    """Compares the parameters that a step has left, before anything else writes to them."""

    name = "apart"

    def __init__(self, members: Membership, weights: Weights) -> None:
        self._members, self._weights = members, weights

    def tells(self, phase: str) -> Any:
        """What must be the same for ranks to be compared, the number of steps, and hashes after some of them."""
        if self._members.world == 1 or self._weights.blind:
            return None
        watched = [now for each in self._weights.watched if each.whole and (now := each.values) is not None]
        here = [*map(class_of, watched), *(conditions.of_this_rank(each.device) for each in watched[:1])]
        return [self._members.first, self._weights.counted, zlib.crc32(repr(here).encode()), self._weights.marks]

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        firsts: dict[int, tuple[int, Any]] = {}
        for rank, own in told.items():
            if own is None:
                continue
            group, counted, alike, marks = own
            first, (_, counted_first, alike_first, marks_first) = firsts.setdefault(group, (rank, own))
            if bool(counted) != bool(counted_first):
                idle, other = (first, rank) if counted else (rank, first)
                return (
                    f"{epoch} is not proved: rank {idle} has made no step with its samples, and rank {other} has: "
                    f"{_INSTEAD}"
                )
            for step in marks.keys() & marks_first.keys() if alike == alike_first else ():
                if marks[step] and marks_first[step] and not {*marks[step]} & {*marks_first[step]}:
                    return (
                        f"{epoch} is not proved: ranks {first} and {rank} train models of their own, as {step} has "
                        f"left none of the parameters that were compared equal on both: {_INSTEAD}"
                    )
        return None
