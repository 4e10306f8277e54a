"""Observed lines of two ranks in pods of their own, as the observer writes them."""

import json
from typing import Any

from torchtally_observer.indices import Bits
from torchtally_observer.line import PREFIX
from torchtally_observer.powers import Sums

PODS = ("demo-master-0", "demo-worker-0")
N = 40
RIGHT = ([*range(0, N, 2)], [*range(1, N, 2)])
ALL = ([*range(N)], [*range(N)])
BEGAN = 1767323040000


def lines(shards: tuple[list[int], ...] = RIGHT, passes: int = 2, **more: Any) -> list[str]:
    """Of passes that hand these indices out to the ranks; with the pods' names before them, as run_local has them."""
    return [f"[{PODS[rank]}] {line(rank, own, at, **more)}" for at in range(passes) for rank, own in enumerate(shards)]


def line(place: int, indices: list[int], number: int = 0, **more: Any) -> str:
    """Of the rank of this number, or of another one that `more` names."""
    sums, bits = Sums(), Bits(N)
    sums.add(indices)
    for each in indices:
        bits.values[each] = 1
    values = {
        **{"v": 1, "pod": PODS[place], "rank": place, "world": 2, "local": 0, "restart": 0, "grouped": True},
        **{"began": BEGAN, "pid": 7, "at": BEGAN / 1000 + 5 + number},
        "loader": {
            **{"place": "train.py:18", "type": "DataLoader", "dataset": "Digits"},
            **{"length": N, "batch": 5, "workers": 0},
        },
        "sampler": {"type": "RandomSampler", "replacement": False},
        **{"pass": number, "end": "whole", "batches": 4, "of": 4, "samples": len(indices)},
        **{"steps": 4, "gradients": True},
        "base": {"type": "Digits", "length": N, "attributes": "0", "rows": 40},
        **{"sums": sums.texts, "order": f"{hash((number, *indices)) & (1 << 64) - 1:016x}", "head": "0" * 16},
        "bits": str(bits),
    }
    return PREFIX + json.dumps(values | more, separators=(",", ":"))
