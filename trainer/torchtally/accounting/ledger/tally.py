"""What was consumed: recorded by the loop, sample by sample. `proving` compares it with the contract."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch.distributed as dist

from torchtally import events
from torchtally.distributed import own_group
from torchtally.proof import digest
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.interleaving import Mix
from torchtally.proof.line import NAMED
from torchtally.proof.order import Order
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Shard
from torchtally_observer import signs

_FLUSH = 1 << 15  # indices that enter the digest at a time
_COUNTABLE = 1 << 24  # samples; up to so many all consumed indices are kept, to count faults that cannot be named


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all lines of a rank have in common: their fields, by their names."""

    run: str
    attempt: int
    pod: str
    task: str
    plan: Mapping[str, int]  # phase -> epochs of it that this run will make
    rank: int
    world: int
    seed: int
    data: str  # the data's fingerprint
    began: int = 0  # when rank 0 began the attempt: milliseconds since 1970

    @property
    def source(self) -> events.Source:
        """This process, as its events name it: by its rank among all, of which some may not train."""
        rank = dist.get_rank() if dist.is_initialized() else 0  # after its end, only rank 0 has something to tell
        return events.Source(pod=self.pod, rank=rank, run=self.run, attempt=self.attempt, began=self.began)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A process's place among the ranks that share the samples.

    Ranks of a tensor-, pipeline- or context-parallel group receive the same samples: they are peers. One of them, in
    the data-parallel group of global rank 0, prints for all.
    """

    rank: int  # among the ranks that share the samples
    world: int  # number of those
    leads: bool  # whether this process prints for its peers
    first: int  # global rank of the first of those

    @property
    def everyone(self) -> dist.ProcessGroup:
        """All processes, over gloo."""
        return own_group.of_all()

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Self:
        """The place in `group` (default: of all processes). A collective call of all processes."""
        own_group.of_all()  # made here
        ranks = dist.get_process_group_ranks(group)
        return cls(
            rank=dist.get_rank(group),
            world=len(ranks),
            leads=0 in ranks,
            first=min(ranks),
        )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pass over n samples, from position `start` of their order on."""

    name: str
    epoch: int
    n: int
    batch: int  # samples a step, of all ranks together
    contract: Contract
    order: Order
    start: int = 0
    end: int | None = None  # the position before which it ends, if not that of the order
    mix: Mix | None = None  # of a mixture of datasets

    def shard(self, run: Run) -> Shard:
        """What the rank of `run` consumes in this phase."""
        return Shard(
            n=self.n,
            rank=run.rank,
            world=run.world,
            contract=self.contract,
            order=self.order,
            seed=run.seed,
            epoch=self.epoch,
            start=self.start,
            end=self.end,
        )


class Tally:
    """The record of what one rank consumed in one phase.

    Attributes:
        drawn: What it should consume in an order that is drawn; None in one that is computed.
    """

    def __init__(self, run: Run, phase: Phase, drawn: Indices | None = None):
        self.drawn = drawn
        self.run, self.phase, self.shard = run, phase, phase.shard(run)
        # This rank's share of the digest of what was consumed before phase.start: the shares of all ranks add up.
        self.carried = Digest()
        self.dropped = Digest()  # what the program's collate_fn has dropped
        self.carried_dropped = Digest()  # this rank's share of what was dropped before phase.start, a part of `carried`
        self.count = 0
        self.outside: list[int] = []  # -1 is an index for a tensor, and no sample: the first few of such
        self._digest = Digest()
        self._pending: list[Indices] = []
        self._pending_count = 0
        self._kept: list[Indices] | None = [] if phase.n <= _COUNTABLE else None

    def record(self, indices: Indices, dropped: Indices | None = None) -> None:
        """Note `indices` (int64) as consumed, others as dropped: call it after the step that used them."""
        signs.taken()
        if dropped is not None:
            self._flush()
            self.dropped += self.digest_of(dropped)
            if self._kept is not None:
                self._kept.append(dropped)
        self._pending.append(indices)
        self._pending_count += len(indices)
        if self._pending_count >= _FLUSH:
            self._flush()

    @property
    def digest(self) -> Digest:
        """Of all that was recorded."""
        self._flush()
        return self._digest

    @property
    def kept(self) -> Indices | None:
        """All recorded indices, also of what was dropped; None where they are too many to keep."""
        self._flush()
        return None if self._kept is None else np.concatenate([np.empty(0, dtype=np.int64), *self._kept])

    @property
    def expected(self) -> tuple[int, Digest]:
        """How many samples it should record, and their digest: of positions alone in an order that is computed."""
        if self.drawn is not None:
            return len(self.drawn), self.digest_of(self.drawn)
        g = digest.base(self.run.run)
        return self.shard.size, sum((digest.of_progression(each, g) for each in self.shard.progressions), Digest())

    def end_at(self, position: int) -> None:
        """End the phase before a position of its order."""
        self.phase = replace(self.phase, end=position)
        self.shard = self.phase.shard(self.run)

    def restore(self, carried: Digest, consumed: Digest, count: int) -> None:
        """Continue from a share of what was consumed before phase.start, and from what this rank consumed after it."""
        self.carried, self._digest, self.count = carried, consumed, count
        self._kept = None  # not all of it was seen here

    def _flush(self) -> None:
        if not self._pending:
            return
        consumed = np.concatenate(self._pending)
        self._pending, self._pending_count = [], 0
        self.count += len(consumed)
        samples = consumed
        if len(consumed) and not 0 <= int(consumed.min()) <= int(consumed.max()) < self.phase.n:
            inside = (consumed >= 0) & (consumed < self.phase.n)
            self.outside = sorted([*self.outside, *consumed[~inside].tolist()])[:NAMED]
            samples = consumed[inside]
        self._digest += self.digest_of(samples)
        if self._kept is not None:
            self._kept.append(consumed)

    def digest_of(self, indices: Indices) -> Digest:
        """The digest of samples (int64) of the phase."""
        return digest.of_samples(self.shard.positions_of(indices), indices, digest.base(self.run.run))
