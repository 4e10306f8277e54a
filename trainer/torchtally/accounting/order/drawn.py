"""An order of the program's own: what its sampler draws in an epoch, in batches.

If all ranks draw the same batches, they take turns: rank r of w has the batches r, r + w, ... Otherwise each rank has
what its own sampler draws, such as one that divides the samples by rank itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from torchtally import exchange
from torchtally.accounting.order.own_sampler import Source
from torchtally.accounting.order.position import Drawn, Position
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.order.schedule import Step
from torchtally.errors import Refused
from torchtally.proof.contract import OfDraws
from torchtally.proof.modular import Words
from torchtally.proof.order import DRAWN, Order
from torchtally.proof.permutation import Indices, splitmix64
from torchtally.proof.shards import Shard

_COUNTABLE = 1 << 24  # samples of a dataset, up to which those are named that are drawn too often or never
_NAMED = 8
_NONE = np.empty(0, dtype=np.int64)
_AS_DRAWN = (
    'pass contract="as_drawn" if samples are meant to repeat or to be left out: the proof then compares what is in the '
    "weights with what the sampler has drawn"
)


@dataclass(frozen=True, eq=False)
class Draw:
    """The steps of a rank in an epoch that is drawn, or in what other ranks have left of it: a Schedule.

    Ranks with fewer batches have empty ones at the end.

    Attributes:
        shard: The epoch.
        batches: This rank's.
        rows: Samples of all ranks before the steps and in the first ones, from 0 steps on.
        marks: Hashes of them and their places, which add up.
        skip: Number of steps, from the first on, that are made already.
        start: Number of batches before the steps, of all ranks.
        before: This rank's share of their samples.
    """

    shard: Shard
    batches: list[Indices]
    rows: Words
    marks: Words
    skip: int = 0
    start: int = 0
    before: Indices = field(default_factory=lambda: _NONE)

    @property
    def steps(self) -> int:
        """Number of steps, those that are skipped included."""
        return len(self.rows) - 1

    @property
    def total(self) -> int:
        """Samples of all ranks in all steps."""
        return int(self.rows[-1])

    @property
    def batch(self) -> int:
        """Samples of all ranks in the largest step."""
        return int(np.diff(self.rows).max(initial=1))

    def reached(self, steps: int) -> int:
        """Samples of all ranks in the first steps."""
        return int(self.rows[min(steps, self.steps)])

    def position(self, step: int) -> int:
        """The position at which a step begins, from 1."""
        return self.reached(step - 1)

    def drawn(self, steps: int) -> Drawn:
        """What the first steps are known by after a restart."""
        return self.reached(steps), int(self.marks[min(steps, self.steps)] >> np.uint64(1))

    def taken(self, steps: int) -> Indices:
        """This rank's samples before the steps and in the first ones."""
        return np.concatenate([self.before, *self.batches[:steps]])

    @property
    def filler(self) -> int:
        """The index of a sample for a rank that has none in a step."""
        return int(self.batches[0][0]) if self.batches else 0

    def left(self) -> Iterator[Step]:
        """The steps that are left."""
        batches, begins = chain(self.batches[self.skip :], repeat(_NONE)), self.rows[self.skip :]
        return map(Step, batches, np.diff(begins).tolist(), begins.tolist())


class DrawnSampler:
    """The order of a phase whose samples the program's own sampler draws: a Sampler."""

    order: Order = DRAWN

    def __init__(
        self,
        name: str,
        source: Source,
        *,
        contract: OfDraws,
        batch_size: int | None,
        seed: int,
        rank: int,
        world: int,
        leads: bool,
        group: dist.ProcessGroup | None,
    ):
        self.n, self.contract, self.batch_size, self.seed = source.n, contract, batch_size, seed
        self.rank, self.world = rank, world
        self.name, self._source, self._leads, self._group = name, source, leads, group

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch. A collective call."""
        self.draw(epoch)

    def draw(self, epoch: int, made: Position | None = None) -> Draw:
        """Choose an epoch, or what is left of it, and share out what all ranks draw in it. A collective call.

        Raises Refused on all ranks. Other ranks than those that have made a part share out the rest of the batches.
        """
        problem, batches, where = None, list[Indices](), f"{self.name} epoch {epoch}"
        try:
            batches = self._source.draw(epoch)
        except Exception as error:  # of the program's sampler: all ranks learn of it
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            problem = f"{where}: the sampler of rank {self.rank} {kind and 'fails with '}{kind}{error}"
        order = _hash(batches, np.arange(len(batches), dtype=np.uint64))
        known = f"{where}: {self.n} samples under {self.contract}"
        own = [problem, known, self.rank, len(batches), int(order.sum(dtype=np.uint64))]
        told = exchange.all_gather(own, self._group)
        if problems := [each for each, *_ in told if each]:
            raise Refused(problems[0])
        if len(differing := {each: None for _, each, *_ in told}) > 1:
            raise Refused(f"the ranks must draw the same epoch of the same data, and have {', or '.join(differing)}")
        of_rank = {rank: drawn for _, _, rank, *drawn in told}
        if peers := sorted(rank for _, _, rank, *drawn in told if drawn != of_rank[rank]):
            raise Refused(
                f"{where}: the peers of data-parallel rank {peers[0]} must draw the same, and draw other samples: seed "
                "their samplers alike"
            )
        same = all(drawn == of_rank[0] for drawn in of_rank.values())
        self._count = len(batches) if same else None
        self._whole = self._turns(epoch, 0, batches) if same else self._own(epoch, batches, of_rank)
        self.schedule = self._whole
        if made and made.drawn:
            self.schedule = self._rest(epoch, made, batches, same=same)
        if not self.whole:
            raise Refused(
                f"{where}: the sampler must draw samples, and draws none: load no state into it, as a resume draws the "
                "epoch again"
            )
        if self.contract == "exact":
            self._check(batches, where, same)
        if made and made.drawn and made.drawn != self.schedule.drawn(self.schedule.skip):
            raise Refused(
                f"{where}: the sampler draws other batches than before the restart: it must depend on its seed, the "
                "epoch, and the number of epochs that it has drawn alone: load no state into it"
            )
        return self.schedule

    def made(self, made: Position) -> int:
        """The steps of an epoch that a part of it stands for."""
        if self._count is None or (made.world == self.world and not made.start):
            return made.steps
        left = max(0, self._count - made.start - made.steps * made.world)
        return self._whole.steps - -(-left // self.world)

    def _rest(self, epoch: int, made: Position, batches: list[Indices], *, same: bool) -> Draw:
        """What is left of an epoch, as the ranks that have made a part of it share it out, or those of today."""
        if made.world == self.world:
            whole = self._turns(epoch, made.start, batches) if made.start else self._whole
            return replace(whole, skip=made.steps)
        if not same:
            raise Refused(
                f"{self.name} epoch {epoch}: each of {made.world} ranks has drawn a part of its own, and {self.world} "
                f"ranks cannot continue within it: continue with {made.world} ranks, or from a state between two epochs"
            )
        return self._turns(epoch, min(made.start + made.steps * made.world, len(batches)), batches)

    def _turns(self, epoch: int, start: int, batches: list[Indices]) -> Draw:
        """Of the same batches on all ranks, this rank has every world-th, from a batch on, and before it as well."""
        of_batches = np.array([[*map(len, batches)], _hash(batches, np.arange(len(batches), dtype=np.uint64))])
        before, rest = of_batches[:, :start], of_batches[:, start:]
        filled = np.pad(rest.astype(np.uint64), ((0, 0), (0, -rest.shape[1] % self.world)))
        of_steps = filled.reshape(2, -1, self.world).sum(axis=2, dtype=np.uint64)
        made = before.sum(axis=1, dtype=np.uint64, keepdims=True)
        share = np.concatenate([_NONE, *batches[:start][self.rank :: self.world]])
        found = self._drawn(epoch, batches[start:][self.rank :: self.world], np.concatenate([made, of_steps], axis=1))
        return replace(found, start=start, before=share)

    def _own(self, epoch: int, batches: list[Indices], of_rank: dict[int, Any]) -> Draw:
        """Each rank has its own batches."""
        steps = max(count for count, _ in of_rank.values())
        of_steps = torch.zeros((2, 1 + steps), dtype=torch.int64)  # what comes before them first
        if self._leads:
            places = np.arange(len(batches), dtype=np.uint64) * np.uint64(self.world) + np.uint64(self.rank)
            of_steps[0, 1 : 1 + len(batches)] = torch.tensor([*map(len, batches)])
            of_steps[1, 1 : 1 + len(batches)] = torch.from_numpy(_hash(batches, places).view(np.int64))
        dist.all_reduce(of_steps, group=self._group)
        return self._drawn(epoch, batches, of_steps.numpy().view(np.uint64))

    def _drawn(self, epoch: int, batches: list[Indices], of_steps: Words) -> Draw:
        shard = Shard(
            n=self.n, rank=self.rank, world=self.world, contract=self.contract, order=DRAWN, seed=self.seed, epoch=epoch
        )
        rows, marks = np.cumsum(of_steps, axis=1, dtype=np.uint64)
        return Draw(shard, batches, rows, marks)

    def _check(self, batches: list[Indices], where: str, same: bool) -> None:
        """Raise Refused on all ranks unless they draw each sample once."""
        flat = np.concatenate([_NONE, *batches])
        found = np.array([len(flat), splitmix64(flat.astype(np.uint64)).sum(dtype=np.uint64)], dtype=np.uint64)
        if not same:
            found = self._sum(found.view(np.int64)).view(np.uint64)
        every = sum(
            int(splitmix64(np.arange(at, min(at + (1 << 20), self.n), dtype=np.uint64)).sum(dtype=np.uint64))
            for at in range(0, self.n, 1 << 20)
        )
        if found.tolist() == [self.n, every & (1 << 64) - 1]:
            return
        wrong = f"{found[0]} samples of {self.n}"
        if self.n <= _COUNTABLE:
            times = np.bincount(flat, minlength=self.n)
            times = times if same else self._sum(times)
            parts = {"more than once": np.flatnonzero(times > 1), "never": np.flatnonzero(times == 0)}
            wrong = " and ".join(f"{shown(those.tolist())} {how}" for how, those in parts.items() if len(those))
        if same:
            raise Refused(f"{where}: the sampler must draw each sample once, and draws {wrong}: {_AS_DRAWN}")
        raise Refused(
            f"{where}: the samplers differ between ranks, and together they must draw each sample once. They draw "
            f"{wrong}. Let the sampler draw the same on all ranks, which then take turns with its batches, or divide "
            f"the samples by rank, as DistributedSampler does. Otherwise, {_AS_DRAWN}"
        )

    def _sum(self, numbers: Any) -> Any:
        """The sums over all ranks that share the samples."""
        together = torch.from_numpy(numbers * self._leads)
        dist.all_reduce(together, group=self._group)
        return together.numpy()

    def __len__(self) -> int:
        return sum(map(len, self.schedule.batches))

    @property
    def batches(self) -> Iterable[list[int]]:
        """What the program has passed, in batches."""
        return self._source.batches

    @property
    def whole(self) -> int:
        """Samples of all ranks in the epoch."""
        return self.schedule.total

    def part(self, start: int = 0, end: int | None = None) -> Draw:
        """The steps of the epoch: no other part of it is known."""
        return self._whole

    @property
    def idle(self) -> bool:
        """Whether this rank has no sample in the last step, which all ranks make."""
        return len(self.schedule.batches) < self.schedule.steps


AnySampler = Sampler | DrawnSampler


def _hash(batches: list[Indices], places: Words) -> Words:
    """A hash of each batch, its order and its place."""
    if not batches:
        return np.empty(0, dtype=np.uint64)
    sizes = np.fromiter(map(len, batches), np.int64, len(batches))
    begins = np.cumsum(sizes) - sizes
    within = (np.arange(int(sizes.sum())) - np.repeat(begins, sizes)).astype(np.uint64)
    where = splitmix64(splitmix64(np.repeat(places, sizes)) + within)
    values = splitmix64(np.concatenate(batches).astype(np.uint64) + where)
    return np.add.reduceat(values, begins, dtype=np.uint64)


def shown(indices: list[int]) -> str:
    """Some samples for a sentence."""
    few = ", ".join(map(str, indices[:_NAMED]))
    return f"sample{'s' * (len(indices) > 1)} {few}{', …' * (len(indices) > _NAMED)}"
