"""Before anything else all ranks say what they hold, and agree, or all end at once with both values."""

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from torchtally.environment import pod_of
from torchtally.errors import Lost, Refused

# A rank may be fetching its data meanwhile.
_PATIENCE = timedelta(minutes=30)
# The longest that a rank waits for the others in one collective: another one may be writing a checkpoint. A pod that
# is gone shows sooner (see pod/rendezvous.py); this is for a rank that hangs in one that lives.
COLLECTIVE = timedelta(minutes=5)


def agree(
    store: Store, rank: int, world: int, pod: str, facts: Mapping[str, Any], problem: str | None
) -> Mapping[str, Any]:
    """Compare all ranks' `facts` through the job's store, which needs no process group; returns rank 0's.

    `facts` are JSON values that must be equal on all ranks, but for those whose name starts with an underscore.
    Raises Refused on every rank, with the same sentence, if they differ or if any rank has a `problem`; Lost with the
    names of those that did not come in half an hour.
    """
    store.set(f"facts/{rank}", json.dumps({"pod": pod, "problem": problem, "facts": dict(facts)}))
    if rank == 0:
        # One rank reads and judges, the others wait for its word: O(world) messages.
        came, lost = _wait(store, "facts", range(world), "did not say what it holds")
        every = [json.loads(store.get(f"facts/{each}")) for each in came]
        refused = None if lost else _refusal(every)
        store.set("verdict", json.dumps({"lost": lost, "refused": refused, "facts": every[0]["facts"]}))
    try:
        store.wait(["verdict"], 2 * _PATIENCE)  # rank 0's own patience ends before
    except DistStoreError:
        raise Lost(f"rank 0{_pod(0)} did not say within {2 * _PATIENCE} whether all agree") from None
    verdict = json.loads(store.get("verdict"))
    # The master's store ends with its process: nobody leaves before all have read.
    store.set(f"read/{rank}", "")
    if rank == 0:
        _, unread = _wait(store, "read", came, "did not read whether all agree")
        verdict["lost"] = verdict["lost"] or unread
    if verdict["lost"]:
        raise Lost(verdict["lost"])
    if verdict["refused"]:
        raise Refused(verdict["refused"])
    agreed: dict[str, Any] = verdict["facts"]
    return agreed


def _wait(store: Store, key: str, ranks: Iterable[int], failed: str) -> tuple[list[int], str | None]:
    """Wait for `key` of each rank; returns the ranks that came, and a sentence that names those that did not."""
    keys = {rank: f"{key}/{rank}" for rank in ranks}
    try:
        store.wait(list(keys.values()), _PATIENCE)
        return list(keys), None
    except DistStoreError:
        came = [rank for rank, each in keys.items() if store.check([each])]
        missing = ", ".join(f"rank {rank}{_pod(rank)}" for rank in keys if rank not in came)
        return came, f"{missing} {failed} within {_PATIENCE}" if missing else None


def _pod(rank: int) -> str:
    return f" ({pod})" if (pod := pod_of(rank)) else ""


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
