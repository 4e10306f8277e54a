"""Resuming at a position: where the ranks of today begin, and the digest of what is consumed already."""

from dataclasses import replace

import numpy as np

from torchtally.accounting.ledger.tally import Tally
from torchtally.accounting.order.drawn import Draw
from torchtally.accounting.order.position import Position
from torchtally.accounting.order.schedule import Schedule
from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Shard

_CHUNK = 1 << 20  # positions at a time


def place(position: Position, shard: Shard, batch: int) -> tuple[int, int]:
    """From which position on the ranks share the samples, and how many steps they skip from there.

    The same ranks continue with their shards. Others, or other batches, share out what is left. So do the same ranks if
    samples are dropped: of these it is known how many there are, and not which rank had them. If the last step has
    repeated samples, the ranks share out what ends with as many: a sample of each, in a step that is made.
    """
    if _is_shared_out(position, shard.world, batch):
        return position.start, position.steps
    if (consumed := _consumed(position, shard)) <= shard.n:
        return consumed, 0
    return max(0, min(consumed - shard.world, shard.n)), 1


def problem(name: str, position: Position, shard: Shard, batch: int) -> str | None:
    """Why an epoch cannot continue at this position with the ranks and batches of today."""
    if position.drawn is not None or _is_shared_out(position, shard.world, batch):
        return None
    repeated = _consumed(position, shard) - shard.n
    if repeated > 0 and (position.dropped or repeated >= shard.world or shard.n + repeated < shard.world):
        more = f"with {max(repeated + 1, 2)} to {shard.n + repeated} ranks, or "
        return (
            f"{name}: the last step of the epoch has repeated {repeated} samples, as its contract is {shard.contract}, "
            f"and {shard.world} ranks cannot count these: continue {'' if position.dropped else more}from a state "
            "between two epochs"
        )
    return None


def _is_shared_out(position: Position, world: int, batch: int) -> bool:
    """Whether the shards of these ranks are those of the position."""
    return position.dropped is None and (position.world, position.batch) == (world, batch)


def _consumed(position: Position, shard: Shard) -> int:
    """How far the ranks of a position have consumed the order, with what their last step has repeated."""
    own = replace(shard, rank=0, world=position.world, start=position.start)
    return position.start + min(position.steps * position.batch, own.total)


def restore(tally: Tally, schedule: Schedule | Draw, dropped: Digest) -> None:
    """Give a new tally what is consumed or dropped before the steps that are left. O(samples / ranks)."""
    shard = tally.shard
    if isinstance(schedule, Draw):
        own = schedule.taken(schedule.skip)
        tally.restore(Digest(), tally.digest_of(own), len(own))
    else:
        before = np.arange(shard.rank, shard.start, shard.world, dtype=np.int64)
        own = shard.positions(0, schedule.begin(schedule.skip))
        tally.restore(_digest(before, shard, tally), _digest(own, shard, tally), len(own))
    if shard.rank == 0:  # for all
        tally.carried_dropped = dropped


def _digest(positions: Indices, shard: Shard, tally: Tally) -> Digest:
    g = digest.base(tally.run.run)
    total = Digest()
    for at in range(0, len(positions), _CHUNK):
        some = positions[at : at + _CHUNK]
        total += digest.of_samples(some, shard.samples_at(some), g)
    return total
