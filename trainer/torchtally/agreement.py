"""Before anything else all ranks say what they hold, and agree, or all end at once with both values."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

from torchtally.errors import Refused

# A rank may be fetching its data meanwhile.
_PATIENCE = timedelta(minutes=30)


def agree(
    store: Store, rank: int, world: int, pod: str, facts: Mapping[str, Any], problem: str | None
) -> Mapping[str, Any]:
    """Compare all ranks' `facts` through the job's store, which needs no process group; returns rank 0's.

    `facts` are JSON values that must be equal on all ranks, but for those whose name starts with an underscore.
    Raises Refused on every rank, with the same sentence, if they differ or if any rank has a `problem`.
    """
    store.set(f"facts/{rank}", json.dumps({"pod": pod, "problem": problem, "facts": dict(facts)}))
    if rank == 0:
        # One rank reads and judges, the others wait for its word: O(world) messages.
        store.wait([f"facts/{each}" for each in range(world)], _PATIENCE)
        every = [json.loads(store.get(f"facts/{each}")) for each in range(world)]
        store.set("verdict", json.dumps({"refused": _refusal(every), "facts": every[0]["facts"]}))
    store.wait(["verdict"], _PATIENCE)
    verdict = json.loads(store.get("verdict"))
    # The master's store ends with its process: nobody leaves before all have read.
    store.set(f"read/{rank}", "")
    if rank == 0:
        store.wait([f"read/{each}" for each in range(world)], _PATIENCE)
    if verdict["refused"]:
        raise Refused(verdict["refused"])
    agreed: dict[str, Any] = verdict["facts"]
    return agreed


def _refusal(every: list[dict[str, Any]]) -> str | None:
    for rank, each in enumerate(every):
        if each["problem"]:
            return f"rank {rank} ({each['pod']}): {each['problem']}"
    first = every[0]
    for rank, each in enumerate(every):
        for name, value in each["facts"].items():
            if not name.startswith("_") and value != first["facts"].get(name):
                return (
                    f"rank {rank} ({each['pod']}) has {name} {value} and rank 0 ({first['pod']}) has "
                    f"{first['facts'].get(name)}: it must be the same on all pods"
                )
    return None
