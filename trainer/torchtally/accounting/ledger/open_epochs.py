"""The epochs of a phase that are open: a loop that accumulates, or fetches ahead, can be in more than one."""

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile

from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.ledger.epoch_in_progress import MANY_PENDING, EpochInProgress
from torchtally.accounting.ledger.state import Position


class OpenEpochs(list[EpochInProgress]):
    """The epochs in progress of one phase, the oldest first. All but the last are handed out in full."""

    @property
    def reached(self) -> list[EpochInProgress]:
        """Those up to the first one that is not complete. Nothing counts in those after it."""
        return self[: len([*takewhile(lambda each: each.complete, self)]) + 1]

    def saved(self, planned: int) -> list[Position]:
        """How far these are, for a state. The loop has left a complete one if the next one begins there."""
        last, found = self.reached[-1], [each.saved for each in self.reached]
        epoch = last.tally.phase.epoch
        if last.complete and last.abandoned and epoch < planned:
            found.append(replace(found[-1], epoch=epoch + 1, start=0, steps=0, dropped=None, drawn=None))
        return found

    @property
    def gap(self) -> str | None:
        """The first batch that is not in the weights, if a later one is: a state has no place for that."""
        reached = self.reached
        last, later = reached[-1], self[len(reached) :]
        if last.weighed and (last.undecided or any(each.counted or each.undecided for each in later)):
            return last.where(last.counted + 1)
        return None

    @property
    def decided(self) -> int:
        """How many of the first ones steps have decided."""
        return len([*takewhile(lambda each: each.decided, self)])

    @property
    def passed(self) -> int:
        """How many come before one that is decided, and are overdue then if they are not decided themselves."""
        decided = self.decided
        return max((number for number, each in enumerate(self) if each.decided and number > decided), default=0)

    @property
    def overdue(self) -> int:
        """How many have been followed by more batches than gradients are accumulated over."""
        return sum(sum(each.total for each in self[number:]) >= MANY_PENDING for number in range(1, len(self)))

    def find(self, batch: Batch | None) -> EpochInProgress | None:
        """That of a batch, or else the last one."""
        own = (each for each in self if batch and each.has(batch))
        return next(own, self[-1] if self else None)


class Open(defaultdict[str, OpenEpochs]):
    """The epochs in progress of each phase.

    Attributes:
        evaluated: Names of those that do not train, and in which an optimizer has stepped nevertheless.
        last: That of the batch that was handed out last.
    """

    def __init__(self) -> None:
        super().__init__(OpenEpochs)
        self.evaluated: set[str] = set()
        self.last: EpochInProgress | None = None

    @property
    def all(self) -> list[EpochInProgress]:
        """All of them."""
        return [each for epochs in self.values() for each in epochs]

    @property
    def pending(self) -> bool:
        """Whether a batch is handed out that steps count, and none has."""
        return any(each.trains and each.handed > each.counted for each in self.all)

    @property
    def ends(self) -> bool:
        """Whether the loop has all batches of an epoch that trains."""
        return any(each.trains and each.ended for each in self.all)

    def touch(self) -> None:
        """An optimizer has stepped with the gradients of no batch."""
        for each in self.all:
            each.touched = True
        if not self.pending:
            self.evaluated.update([each.name for each in self.all if each.handed > each.counted][:1])
