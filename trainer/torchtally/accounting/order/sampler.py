"""This rank's part of an epoch's order, as samplers for a DataLoader."""

from collections.abc import Iterator
from dataclasses import replace

import torch.distributed as dist
from torch.utils import data

from torchtally.accounting.order.locality import Locality
from torchtally.accounting.order.schedule import Schedule
from torchtally.errors import Refused
from torchtally.proof.contract import Contract
from torchtally.proof.order import Order
from torchtally.proof.shards import Shard


class Sampler(data.Sampler[int]):
    """This rank's part of an epoch's order.

    On its own, it replaces a DistributedSampler and proves nothing:
    `DataLoader(dataset, batch_size=32, sampler=Sampler(len(dataset)))`, with `set_epoch` before each epoch. If DDP
    needs equally many batches on every rank, use the contract `padded` or `drop_last`.

    Args:
        n: Number of samples of the dataset.
        batch_size: Samples of this rank in a step. It only matters for `steps`.
        global_batch_size: Samples of all ranks in a step, in place of it.
        seed: Seed of the order of samples, from 0.
        shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
        order: An order with locality, with the sizes of the shard files, in place of one over all samples.
        contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`.
        drop_last: Whether a last step that has fewer samples is left out.
        rank: This process's rank (default: that of the process group).
        world: Number of ranks (default: that of the process group).

    Attributes:
        shared: Whether each rank has a sample in the last of the `steps` where it can: `Schedule`.
        batch: Samples of all ranks in a step.

    Example:
        >>> list(Sampler(9, shuffle=False, rank=1, world=2))
        [1, 3, 5, 7]
    """

    def __init__(
        self,
        n: int,
        *,
        batch_size: int = 1,
        global_batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        order: Locality | None = None,
        contract: Contract = "exact",
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ):
        self.n, self.seed, self.contract, self.drop_last = n, seed, contract, drop_last
        self.shared = False
        if order and not shuffle:
            raise Refused(f"order={order} needs shuffle=True")
        self.order: Order = order.of(n) if order else "feistel-1" if shuffle else "sequential"
        self.rank = dist.get_rank() if rank is None else rank
        self.world = dist.get_world_size() if world is None else world
        self.batch = global_batch_size or batch_size * self.world
        self.set_epoch(0)

    @property
    def batch_size(self) -> int:
        """Samples of this rank in a step, or the most of any rank."""
        return -(-self.batch // self.world)

    @property
    def whole(self) -> int:
        """Samples of all ranks in a whole epoch, with those of a last step that is left out."""
        return self.part().shard.total

    def part(self, start: int = 0, end: int | None = None) -> Schedule:
        """The steps of a part of an epoch, whatever part was chosen."""
        return replace(self.schedule, shard=replace(self.schedule.shard, start=start, end=end), skip=0)

    @property
    def idle(self) -> bool:
        """Whether this rank has no sample in the last step, which all ranks make."""
        schedule = self.schedule
        return schedule.begin(schedule.steps - 1) >= len(self)

    @property
    def batches(self) -> data.Sampler[list[int]]:
        """The same in batches."""
        equal = self.batch % self.world == 0
        return data.BatchSampler(self, self.batch_size, drop_last=False) if equal else _Steps(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, from its beginning."""
        self.choose(epoch, 0, 0)

    def choose(self, epoch: int, start: int, skip: int, end: int | None = None) -> None:
        """Choose a part of an epoch: positions `start` to `end` of its order, without the first `skip` steps."""
        shard = Shard(
            n=self.n,
            rank=self.rank,
            world=self.world,
            contract=self.contract,
            order=self.order,
            seed=self.seed,
            epoch=epoch,
            start=start,
            end=end,
        )
        self.schedule = Schedule(shard, self.batch, skip, self.drop_last, self.shared)

    def steps(self) -> Iterator[list[int]]:
        """Yield this rank's indices of each step. All ranks have equally many steps; the last one can be empty."""
        return (step.tolist() for step in self.schedule.arrays())

    def __iter__(self) -> Iterator[int]:
        for indices in self.steps():
            yield from indices

    def __len__(self) -> int:
        return self.schedule.shard.size


class _Steps(data.Sampler[list[int]]):
    """The batches of a sampler whose ranks have different numbers of samples in a step."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.steps()

    def __len__(self) -> int:
        return self.sampler.schedule.steps
