"""The batches that a loop was handed, and which of them a loss is of."""

from collections.abc import Collection
from typing import Any

from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.checkpoints.objects import tensors
from torchtally.errors import Refused

_AS_RECEIVED = "weigh() must receive batches as the loop has received them, of an epoch in progress that trains"


class HandedOut:
    """The batches of one account that the loop was handed, and that neither count nor are dropped for good.

    Attributes:
        last: Those of the last loss that was weighed.
        beyond: Why a batch that was handed out cannot have a loss.
        looked: Whether the program has left that batch's epoch.
    """

    def __init__(self) -> None:
        self._batches: list[Handed] = []
        self.last: tuple[Handed, ...] = ()
        self.beyond: str | None = None
        self.looked = False

    def add(self, batch: Handed) -> None:
        """Take note of a batch that the loop receives."""
        self._batches = [each for each in self._batches if not (each.counted or each.left_out)]
        self._batches.append(batch)
        if self.looked:
            self.beyond, self.looked = None, False

    def has_loss(self, epoch: EpochInProgress) -> bool:
        """Whether a batch of an epoch has a loss."""
        return any(each.weighed and each.epoch is epoch for each in self._batches)

    def without_loss(self, phase: str) -> Handed | None:
        """The first batch of a phase that waits for a loss."""
        waiting = (each for each in self._batches if not (each.weighed or each.counted or each.left_out))
        return next((each for each in waiting if each.epoch.phase == phase), None)

    def forget(self, epoch: EpochInProgress) -> None:
        """Let go of the batches of an epoch, which has not begun yet after all."""
        self._batches = [each for each in self._batches if each.epoch is not epoch]

    def skip(self, epoch: EpochInProgress, step: int) -> None:
        """The program leaves a batch out of the weights."""
        for each in self._batches:
            each.left_out |= each.epoch is epoch and each.step == step

    def of_loss(self, named: Collection[Any], at: EpochInProgress | None) -> tuple[Handed, ...]:
        """Those of a loss, which may be `named`; the loop is `at` a batch of an epoch. Raises Refused if unclear."""
        return tuple(map(self.find, named)) if named else self._unnamed(at)

    def find(self, named: Any, wanted: str = _AS_RECEIVED) -> Handed:
        """One as the loop has received it, or a copy. Raises Refused, with what is `wanted`, if it is none of them."""
        for each in reversed(self._batches):
            if each.is_as(named):
                return each
        equal = [(each, places) for each in self._batches if not each.left_out and (places := each.places_of(named))]
        if not equal:
            raise Refused(self.beyond or wanted)
        # A prefetcher hands out in order what it has copied, so of equal ones the first is meant that has no loss, or
        # none that names it by this tensor: a second loss must not be taken for one of the next batch.
        free = (pair for pair in equal if not pair[0].weighed or (pair[0].named and not pair[0].named & pair[1]))
        found, places = next(free, equal[-1])
        found.copies, found.named = (*found.copies, *tensors(named)), found.named | places
        return found

    def _unnamed(self, at: EpochInProgress | None) -> tuple[Handed, ...]:
        """The batch of a loss, if that is clear: the only one of its phase without one, or those of the last loss."""
        waiting = [each for each in self._batches if not (each.weighed or each.left_out)]
        if self.beyond:
            raise Refused(_passed_over(waiting) if waiting else self.beyond)
        if len(waiting) > 1:
            waiting = [each for each in waiting if not each.left] or waiting
        if not waiting and self.last:
            if at and not at.trains and at.handed > at.counted:
                raise Refused(
                    f"{at.where(at.handed)}: the losses of a phase that weigh() receives need a loader with "
                    "trains=True; name the batch of one that is trained beside it: weigh(loss, batch)"
                )
            return self.last
        if not waiting:
            raise Refused(
                "weigh() must come after the loop has received a batch of a phase that trains: iterate over what "
                "account.loader() or account.batches() has returned, and not over another DataLoader"
            )
        if len(waiting) == 1:
            return (waiting[0],)
        waiting = [each for each in waiting if each.share] or waiting[-1:]
        for each in waiting:
            own = [other for other in waiting if other.epoch.phase == each.epoch.phase]
            if passed := [other for other in own if other.epoch != own[-1].epoch]:
                raise Refused(_passed_over(passed))
            if len(own) > 1:
                raise Refused(
                    f"{waiting[-1].place}: weigh() must name the batches of this loss, as {len(waiting)} were handed "
                    "out and have no loss: weigh(loss, batch) with what the loop has received, and skip(reason) before "
                    "`continue` for one that is left out"
                )
        return tuple(waiting)


def _passed_over(batches: list[Handed]) -> str:
    return (
        f"{batches[0].epoch.name}: batches have no loss, and a later epoch has begun: skip(reason) before `continue` "
        "is for one that is left out, a loader with trains=False for a pass that trains nothing, and weigh(loss, "
        "batch) for a loop that fetches ahead"
    )
