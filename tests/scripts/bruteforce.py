"""Tally lines counted out one sample at a time, sharing nothing with the verifier but the permutation itself."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from torchtally import shards

Line = dict[str, Any]
Consume = Callable[[str, int, int, list[int]], list[int]]  # phase, epoch, rank, shard -> what was really consumed

_MASK = 0xFFFFFFFFFFFFFFFF


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def order(n: int, seed: int, epoch: int) -> list[int]:
    """The epoch's order, and a check that it is one: every sample there, none twice."""
    permuted = shards.permute(np.arange(n, dtype=np.int64), n, seed, epoch).tolist()
    assert sorted(permuted) == list(range(n))
    return list(permuted)


def deal(samples: list[int], world: int, contract: str) -> list[list[int]]:
    """Hand out the samples one by one, as cards to players."""
    hands: list[list[int]] = [[] for _ in range(world)]
    for rank, sample in zip(itertools.cycle(range(world)), samples, strict=False):
        hands[rank].append(sample)
    longest = max(map(len, hands))
    if contract == "padded":
        again = itertools.cycle(samples)
        for hand in hands:
            if len(hand) < longest:
                hand.append(next(again))
    if contract == "drop_last":
        shortest = min(map(len, hands))
        hands = [hand[:shortest] for hand in hands]
    return hands


def faithful(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    return shard


def run(
    n: int = 60,
    world: int = 4,
    contract: str = "exact",
    seed: int = 0,
    plan: dict[str, int] | None = None,
    consume: Consume = faithful,
    ranks_per_pod: int = 1,
    **common: Any,
) -> list[Line]:
    """The lines of a whole run, in the order in which they would be printed."""
    plan = {"train": 2, "test": 2} if plan is None else plan
    lines = []
    for epoch in range(1, max(plan.values()) + 1):
        for phase in (name for name, epochs in plan.items() if epoch <= epochs):
            shuffled = phase == "train"
            used = contract if shuffled else "exact"
            size = n if shuffled else max(1, n // 6)
            dealt = deal(order(size, seed, epoch) if shuffled else list(range(size)), world, used)
            hands = [consume(phase, epoch, rank, shard) for rank, shard in enumerate(dealt)]
            rows: list[tuple[int | str, list[int], list[int]]] = list(zip(range(world), dealt, hands, strict=True))
            rows.append(("all", [i for shard in dealt for i in shard], [i for taken in hands for i in taken]))
            for rank, shard, taken in rows:
                pod = rank // ranks_per_pod if isinstance(rank, int) else 0
                lines.append(
                    {
                        "v": 1,
                        "run": "3f9c2a7b10de",
                        "attempt": 0,
                        "pod": f"demo-worker-{pod - 1}" if pod else "demo-master-0",
                        "task": "fashion-mnist",
                        "phase": phase,
                        "epoch": epoch,
                        "plan": plan,
                        "rank": rank,
                        "world": world,
                        "n": size,
                        "seed": seed,
                        "contract": used,
                        "order": "feistel-1" if shuffled else "sequential",
                        "data": "sha256:0123456789abcdef",
                        **counts(shard, taken),
                    }
                    | common
                )
    return lines


def counts(shard: list[int], taken: list[int]) -> Line:
    lost = sorted((Counter(shard) - Counter(taken)).elements())
    doubled = sorted((Counter(taken) - Counter(shard)).elements())
    values: Line = {
        "expected": len(shard),
        "consumed": len(taken),
        "digest": f"{sum(map(splitmix64, taken)) & _MASK:016x}",
        "lost": len(lost),
        "doubled": len(doubled),
    }
    if lost or doubled:
        values |= {"lost_indices": sorted(set(lost))[:8], "doubled_indices": sorted(set(doubled))[:8]}
    return values


def text(lines: list[Line], prefix: str = "") -> str:
    return "".join(f"{prefix}TORCHTALLY {json.dumps(line, separators=(',', ':'))}\n" for line in lines)
