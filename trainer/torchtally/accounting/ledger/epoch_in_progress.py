"""An epoch in progress on one rank: what the loop was handed, and what of that is in the weights."""

from collections import Counter, deque
from dataclasses import replace

import numpy as np
from torch import Tensor

from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.batches.step_loader import Taken
from torchtally.accounting.ledger import drops as dropping
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.drops import Drops
from torchtally.accounting.ledger.tally import Tally
from torchtally.accounting.order.drawn import Draw, shown
from torchtally.accounting.order.position import Position
from torchtally.accounting.order.schedule import Schedule
from torchtally.errors import Refused, Unproven
from torchtally.log import log
from torchtally.proof.digest import Digest
from torchtally.proof.permutation import Indices

MANY_PENDING = 256  # batches that do not count: more than gradients are accumulated over


class EpochInProgress:
    """Counts the batches of one rank in one phase of one epoch.

    `hand_out` compares each batch with its step at once. A position therefore says all: a rank that has committed s
    steps has consumed exactly the samples of its first s steps.
    """

    def __init__(
        self,
        tally: Tally,
        schedule: Schedule | Draw,
        *,
        drops: Drops | None = None,
        trains: bool = True,
    ):
        self.tally, self.drops, self.trains = tally, drops, trains
        self.schedule, self._planned = schedule, schedule.left()
        self.total = schedule.steps  # those that were skipped included
        self.phase, self._world = tally.phase.name, schedule.shard.world
        self.handed = self.counted = schedule.skip
        self.ended = self.complete = self.handed == self.total  # whether all steps are handed out, and count
        # Indices, and those dropped, of the batches that are handed out and do not count yet.
        self._pending: deque[tuple[Indices, Indices | None]] = deque()
        self.given: dict[int, Tensor] = {}  # the indices that the loop has, by step, of those that it took with these
        self._skipped: set[int] = set()  # steps of these, by the program
        self.weighed = False  # whether the steps of named optimizers count its batches
        self.first: int | None = None  # the number, among the steps of optimizers, of the first one with its gradients
        self.stopped = False  # by the program, before the last step
        self.begun_again = False  # as another one, after a look at its first batches
        self.abandoned = False  # at a batch, by the program
        self.touched = False  # by a step with the gradients of no batch
        self._used: set[int] = set()  # of `_skipped`, those that are in the weights
        phase = tally.phase
        self.name = f"{phase.name} epoch {phase.epoch}"

    @property
    def decided(self) -> bool:
        """Whether steps of named optimizers have decided on all of its batches."""
        return self.weighed and self.complete

    @property
    def untouched(self) -> bool:
        """Whether the batches that were handed out are in no weights, so that they can be handed out again."""
        dropped = any(dropped is not None for _, dropped in self._pending)
        known = self.touched or self._skipped or dropped or (self.trains and self.counted > self.schedule.skip)
        return not known and (self.abandoned or not self.ended)

    @property
    def reached(self) -> int:
        """How far: `position.consumed`."""
        return self.schedule.position(self.counted + 1)

    @property
    def repeats(self) -> bool:
        """Whether its next step has only samples again, from among which no other number of ranks could continue."""
        return isinstance(self.schedule, Schedule) and self.reached >= self.tally.phase.n

    @property
    def saved(self) -> Position:
        """How far the samples that count reach, and what of them is dropped, on any rank. It asks the job's store."""
        dropped = self.drops.upto(self.counted) if self.drops else Digest()
        return replace(self.position, dropped=dropped.packed if any(dropped.words) else None)

    @property
    def position(self) -> Position:
        """How far the samples that count reach."""
        phase, world = self.tally.phase, self.schedule.shard.world
        return Position(
            epoch=phase.epoch,
            start=self.schedule.start if isinstance(self.schedule, Draw) else phase.start,
            steps=self.counted,
            batch=phase.batch,
            world=world,
            drawn=self.schedule.drawn(self.counted) if isinstance(self.schedule, Draw) else None,
        )

    def samples(self, first: int, last: int) -> int:
        """Samples of all ranks in the steps after step `first`, up to step `last`."""
        return self.schedule.reached(last) - self.schedule.reached(first)

    @property
    def progress(self) -> str:
        """A line of progress."""
        return f"{self.name}/{self.tally.run.plan[self.phase]}: step {self.counted} of {self.total}"

    def where(self, step: int) -> str:
        """The step for a sentence."""
        return f"{self.name}, step {step} of {self.total}"

    def hand_out(self, taken: Taken) -> Handed:
        """Return the batch as the loop receives it. Raises Unproven unless its samples are those of the step."""
        indices, data, reasons, step = taken
        step = step or next(self._planned)
        dropped = None if indices is step.indices else self._left_out(taken, step.indices)
        self._take(indices, dropped)
        if dropped is not None and self.drops:
            self.drops.say(self.where(self.handed), reasons)
            if self.trains:
                self.drops.post(self.handed, self.tally.digest_of(dropped))
        share = len(indices) * self._world / max(step.rows, 1)
        return Handed(self, self.handed, indices, data, reasons, step.rows, share, step.position, self.ended)

    def _left_out(self, taken: Taken, expected: Indices) -> Indices | None:
        """The samples that a batch leaves out, if any. Raises Unproven unless the others are those of the step."""
        where = self.where(self.handed + 1)
        found, dropped = taken.indices, None
        if taken.dropped:
            dropping.check(taken.dropped, where)
            left_out = np.isin(expected, [*taken.dropped])
            if foreign := sorted({*taken.dropped} - {*expected.tolist()}):
                raise Unproven(f"{where} is not proved: the batch drops {shown(foreign)}, not of this step")
            dropped, expected = expected[left_out], expected[~left_out]
        if found.tobytes() != expected.tobytes() and not np.array_equal(np.sort(found), np.sort(expected)):
            lacks, foreign = _less(expected, found), _less(found, expected)
            parts = [f"lacks {shown(lacks)}"] * bool(lacks) + [f"has {shown(foreign)} too many"] * bool(foreign)
            size = self.schedule.batch // self.schedule.shard.world
            hint = f"; the loader's batch_size must be the sampler's, {size}" if len(found) != len(expected) else ""
            raise Unproven(f"{where} is not proved: the batch {' and '.join(parts)}{hint}")
        return dropped

    def _take(self, indices: Indices, dropped: Indices | None) -> None:
        """Note a batch as handed out, whatever samples it has."""
        self.handed += 1
        self.ended = self.handed == self.total
        self._pending.append((indices, dropped))
        if self.trains and len(self._pending) == MANY_PENDING:
            log.warning(
                f"{self.name}: {MANY_PENDING} batches are handed out and do not count; a batch counts once an "
                "optimizer that account.optimizer() has received steps with its gradients, or once commit() is called"
            )

    def count(self, upto: int) -> None:
        """Count the batches up to step `upto`, and those after it that are skipped."""
        while self.counted < upto or self.counted + 1 in self._skipped:
            self.tally.record(*self._pending.popleft())
            self.counted += 1
            self.given.pop(self.counted, None)
            if self._skipped:
                self._skipped.discard(self.counted)
                self._used.discard(self.counted)
        self.complete = self.counted == self.total

    def has(self, batch: Batch) -> bool:
        """Whether the batch is one of this epoch that does not count yet."""
        own = self._waiting(batch.step)
        return own is not None and np.array_equal(own, batch.indices.numpy(force=True))

    def unskippable(self, step: int, batch: Batch | None) -> str | None:
        """Why a step cannot be skipped."""
        own = self._waiting(step)
        if own is not None and step not in self._skipped and (batch is None or self.given.get(step) is batch.indices):
            return None
        return f"{self.where(step)}: skip() must have a batch that is handed out, and neither committed nor skipped"

    def skip(self, step: int, reason: str) -> None:
        """Count a step's samples as dropped, once the steps before it count."""
        place = step - self.counted - 1
        left, dropped = self._pending[place]
        self._pending[place] = left[:0], left if dropped is None else np.concatenate([left, dropped])
        if self.drops:
            self.drops.say(self.where(step), dict.fromkeys(left.tolist(), reason))
            self.drops.post(step, self.tally.digest_of(left))
        self._skipped.add(step)
        self.count(self.counted)

    def decide(self, step: int) -> None:
        """Count a step's samples, once the steps before it are decided as well."""
        if step == self.counted + 1:
            self.count(step)
        else:
            self._skipped.add(step)
            self._used.add(step)

    @property
    def undecided(self) -> int | None:
        """The first step that neither counts nor is dropped, if a later one counts: it has no place in a state."""
        return self.counted + 1 if self._used else None

    def close(self) -> None:
        """Record what is decided after a step that is lost, and as dropped what the loader leaves out."""
        for step, (indices, dropped) in enumerate(self._pending, self.counted + 1):
            if self.weighed and step in self._skipped:
                self.tally.record(indices, dropped)
        if isinstance(self.schedule, Schedule) and self.schedule.drop_last and not self.stopped:
            self.tally.record(np.empty(0, dtype=np.int64), self.schedule.rest)

    def commit(self) -> None:
        """Count all batches that are handed out."""
        self.count(self.handed)

    def commit_upto(self, batch: Batch) -> None:
        """Count the batches up to this one. Raises Refused if it is not to be counted."""
        if not self.has(batch):
            raise Refused(
                f"{self.where(batch.step)}: commit() must receive a batch that is handed out and not committed: "
                f"{self.counted} of {self.handed} batches are committed"
            )
        self.count(batch.step)

    def _waiting(self, step: int) -> Indices | None:
        """The indices of a batch that is handed out and does not count yet."""
        return self._pending[step - self.counted - 1][0] if self.counted < step <= self.handed else None

    def stop(self) -> None:
        """End the epoch after the samples that count."""
        self.stopped = True
        self.total, self.complete, self.ended = self.counted, True, self.handed == self.counted
        if isinstance(self.schedule, Draw):
            self.tally.drawn = self.schedule.taken(self.counted)
            self.tally.end_at(self.position.consumed)
        else:
            self.tally.end_at(min(self.position.consumed, self.tally.phase.n))

    @property
    def left(self) -> str:
        """Why samples are lost, for a sentence."""
        uncommitted = self.handed - self.counted
        if self.handed < self.total and (self.weighed or (self.trains and uncommitted <= 1)):
            return f": the loop left the epoch in step {self.handed} of {self.total}"
        if self.weighed and self._pending:
            lost = self.handed - self.counted - len(self._skipped)
            return (
                f": of {lost} of the {self.handed} batches that were handed out, no step of an optimizer has used "
                "gradients; each batch needs account.weigh(loss).backward() and a step of an optimizer that "
                "account.optimizer() has received, also the last of the run; skip(reason) leaves one out, and "
                "account.holds(batch) names one whose gradients the loop writes itself"
            )
        if self.trains and self._pending:
            return (
                f": {self.counted} of the {self.handed} batches that were handed out are committed; call commit() "
                "after optimizer.step(), also after the last one of the epoch"
            )
        asks = "" if self.trains else "; a batch counts once the loop asks for the next one, also the last"
        return f": the loop left the epoch in step {self.handed} of {self.total}{asks}"


def _less(one: Indices, other: Indices) -> list[int]:
    """What `one` has more often than `other`."""
    return sorted((Counter(one.tolist()) - Counter(other.tolist())).elements())
