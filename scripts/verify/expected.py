"""What each rank should have consumed, from the numbers in its line alone. Nothing here grows with n."""

from functools import lru_cache
from importlib.util import find_spec
from typing import cast

import numpy as np

from torchtally.proof import digest, shards
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest, P, Stretch
from torchtally.proof.shards import Order, Progression

from .lines import Tally

CAN_NAME = bool(find_spec("sympy"))  # without it a wrong digest is found, but what is wrong cannot be read from it


def size(tally: Tally) -> int:
    """Samples in the shard of the tally's rank; of all ranks together, those before `start` too."""
    contract = cast(Contract, tally.contract)
    if tally.rank == "all":
        return tally.start + shards.total(tally.n, tally.world, contract, tally.start)
    return shards.size(tally.n, tally.rank, tally.world, contract, tally.start)


def shard(tally: Tally) -> list[Progression]:
    """The positions of the tally's shard, in the order in which they are consumed; of all ranks, the whole order."""
    if tally.rank == "all":
        return [Progression(0, 1, tally.n)]
    return shards.progressions(tally.n, tally.rank, tally.world, cast(Contract, tally.contract), tally.start)


def times(tally: Tally, position: int) -> int:
    """How often the tally's rank, or all of them together, should have consumed the sample at `position`."""
    if tally.rank == "all":  # the positions 0, 1, 2, ..., which start again at n
        return max(0, -((position - size(tally)) // tally.n))
    return int(number(tally, position) is not None)


def number(tally: Tally, position: int) -> int | None:
    """Which sample of the shard `position` is, counted from 0; None if it is not in it."""
    before = 0
    for part in shard(tally):
        if contains(part, position):
            return before + (position - part.first) // part.stride
        before += part.count
    return None


def position(tally: Tally, number: int) -> int:
    """Where sample `number` of the shard is in the order."""
    for part in shard(tally):
        if number < part.count:
            break
        number -= part.count
    return part.first + part.stride * number


def contains(part: Progression, position: int) -> bool:
    away, off = divmod(position - part.first, part.stride)
    return off == 0 and 0 <= away < part.count


def difference(tally: Tally) -> Digest:
    """What was consumed less what should have been. The words of indices mean something for all ranks together only."""
    if tally.rank != "all":
        return tally.digest - _of_positions(tally.run, *shard(tally))
    # The sequential order is the same for every seed and in every epoch: computed once.
    varies = (0, 0) if tally.order == "sequential" else (tally.epoch, tally.seed)
    return tally.digest - _together(
        tally.run, tally.n, tally.start, tally.world, cast(Contract, tally.contract), cast(Order, tally.order), *varies
    )


def carried(tally: Tally) -> Digest:
    """What earlier worlds consumed before `start`: the positions, for no closed form has their indices."""
    return _of_positions(tally.run, Progression(0, 1, tally.start))


def explain(tally: Tally, found: Digest) -> list[Stretch] | None:
    """What a difference says was lost and doubled; None if that is too much to be named."""
    if not any(found.of_positions):
        return []
    return digest.explain(found, shard(tally)[0], tally.n, digest.base(tally.run)) if CAN_NAME else None


def of_samples(tally: Tally, indices: tuple[int, ...]) -> Digest:
    """Digest of the positions of samples."""
    return _of_positions(tally.run, *(Progression(each, 1, 1) for each in positions(tally, indices)))


def positions(tally: Tally, indices: tuple[int, ...]) -> list[int]:
    if tally.order == "sequential":
        return list(indices)
    return list(shards.locate(np.array(indices, dtype=np.int64), tally.n, tally.seed, tally.epoch).tolist())


def samples(tally: Tally, positions: list[int]) -> list[int]:
    """The sample indices at `positions`."""
    if tally.order == "sequential":
        return positions
    return list(shards.permute(np.array(positions, dtype=np.int64), tally.n, tally.seed, tally.epoch).tolist())


def is_right(tally: Tally) -> bool:
    """Whether a rank's line says that all is right, and its digest too. What is said in another way may also be."""
    if tally.rank == "all" or tally.lost != 0 or tally.doubled != 0:
        return False
    size, positions = _share(tally.run, tally.n, tally.start, tally.rank, tally.world, tally.contract)
    return tally.expected == tally.consumed == size and tally.packed.startswith(positions)


def sum_of(tallies: list[Tally]) -> Digest:
    """Their digests in one."""
    words = np.frombuffer(b"".join(tally.packed for tally in tallies), ">u8").reshape(-1, digest.WORDS)
    low, high = (words & 0xFFFFFFFF).sum(axis=0).tolist(), (words >> 32).sum(axis=0).tolist()
    return Digest(tuple((a + (b << 32)) % P for a, b in zip(low, high, strict=True)))


@lru_cache(maxsize=1 << 14)  # a rank's positions are the same in every epoch
def _share(run: str, n: int, start: int, rank: int, world: int, contract: str) -> tuple[int, bytes]:
    """A rank's number of samples, and what its digest begins with."""
    parts = shards.progressions(n, rank, world, cast(Contract, contract), start)
    words = _of_positions(run, *parts).of_positions
    return sum(part.count for part in parts), b"".join(word.to_bytes(8, "big") for word in words)


def _of_positions(run: str, *parts: Progression) -> Digest:
    return sum((digest.expected(part, digest.base(run)) for part in parts), Digest())


@lru_cache(maxsize=8)
def _together(
    run: str, n: int, start: int, world: int, contract: Contract, order: Order, epoch: int, seed: int
) -> Digest:
    return digest.contract(n, epoch, order, seed, shards.whole(n, world, contract, start), digest.base(run))
