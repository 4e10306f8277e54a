"""What each rank should have consumed, recomputed from N, world size, seed, contract, order and epoch alone."""

from functools import lru_cache
from typing import cast

import numpy as np

from torchtally import shards

from .lines import Tally

MODULUS = 1 << 64
_BLOCK = 1 << 20  # positions held at a time


def size(tally: Tally) -> int:
    """Samples in the shard of the tally's rank, or in all shards together."""
    contract = cast(shards.Contract, tally.contract)
    if tally.rank == "all":
        return shards.total(tally.n, tally.world, contract)
    return shards.size(tally.n, tally.rank, tally.world, contract)


def digest(tally: Tally) -> int:
    """Digest of the shard of the tally's rank, or of all shards together."""
    # The sequential order is the same in every epoch and for every seed: computed once.
    varies = (0, 0) if tally.order == "sequential" else (tally.seed, tally.epoch)
    ranks = _digests(tally.n, tally.world, tally.contract, tally.order, *varies)
    return sum(ranks) % MODULUS if tally.rank == "all" else ranks[tally.rank]


def digest_of(indices: tuple[int, ...]) -> int:
    return shards.digest(np.array(indices, dtype=np.int64))


@lru_cache(maxsize=8)
def _digests(n: int, world: int, contract: str, order: str, seed: int, epoch: int) -> list[int]:
    """Every rank's digest, in one walk over the order: position p belongs to rank p mod world."""
    end = {"exact": n, "padded": -(-n // world) * world, "drop_last": n // world * world}[contract]
    step = max(1, _BLOCK // world) * world  # whole rows of one position a rank
    sums = np.zeros(world, dtype=np.uint64)
    for start in range(0, end, step):
        positions = np.arange(start, min(start + step, end), dtype=np.int64) % n
        indices = positions if order == "sequential" else shards.permute(positions, n, seed, epoch)
        hashes = shards.splitmix64(indices.astype(np.uint64))
        rows = np.zeros(-(-len(hashes) // world) * world, dtype=np.uint64)  # under `exact` the last row may be short
        rows[: len(hashes)] = hashes
        sums += rows.reshape(-1, world).sum(axis=0, dtype=np.uint64)
    return [int(s) for s in sums]
