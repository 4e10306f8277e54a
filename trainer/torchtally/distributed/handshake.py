"""The handshake before all other work: all ranks compare their settings, and start together or all end."""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from torchtally.environment import pod_of
from torchtally.errors import Lost, Refused

_TIMEOUT = timedelta(minutes=30)  # a rank can be downloading its data
# The timeout of a collective call, in which another rank can be writing a checkpoint. It is for a rank that hangs: the
# rendezvous detects a lost pod sooner.
COLLECTIVE_TIMEOUT = timedelta(minutes=5)


def agree(
    store: Store,
    rank: int,
    world: int,
    pod: str,
    facts: Mapping[str, Any],
    problem: str | None,
    judge: Callable[[list[dict[str, Any]]], str | None] = lambda all_ranks: None,
) -> Mapping[str, Any]:
    """Compare the `facts` of all ranks through the job's store, without a process group; returns those of rank 0.

    `facts` are JSON values. They must be equal on all ranks, except those whose name starts with an underscore. Of
    these, `judge` says what is wrong: it receives the `pod` and the `facts` of all ranks.

    Raises Refused, with the same sentence on every rank, if facts differ or any rank has a `problem`. Raises Lost with
    the names of the ranks that do not join within half an hour.
    """
    store.set(f"facts/{rank}", json.dumps({"pod": pod, "problem": problem, "facts": dict(facts)}))
    if rank == 0:
        # Rank 0 compares, and the others read its verdict: O(world) messages.
        present, lost = _wait(store, "facts", range(world), "did not join the handshake")
        all_ranks = [json.loads(store.get(f"facts/{each}")) for each in present]
        refused = None if lost else _refusal(all_ranks) or judge(all_ranks)
        store.set("verdict", json.dumps({"lost": lost, "refused": refused, "facts": all_ranks[0]["facts"]}))
    try:
        store.wait(["verdict"], 2 * _TIMEOUT)  # rank 0 writes it after _TIMEOUT at the latest
    except DistStoreError:
        raise Lost(f"rank 0{_pod(0)} did not end the handshake within {2 * _TIMEOUT}") from None
    verdict = json.loads(store.get("verdict"))
    # The master's store ends with its process, so rank 0 waits until all ranks have read the verdict.
    store.set(f"read/{rank}", "")
    if rank == 0:
        _, unread = _wait(store, "read", present, "did not read the result of the handshake")
        verdict["lost"] = verdict["lost"] or unread
    if verdict["lost"]:
        raise Lost(verdict["lost"])
    if verdict["refused"]:
        raise Refused(verdict["refused"])
    agreed: dict[str, Any] = verdict["facts"]
    return agreed


def _wait(store: Store, key: str, ranks: Iterable[int], failure: str) -> tuple[list[int], str | None]:
    """Wait until each rank has set `key`; returns the ranks that have, and a sentence that names the others."""
    keys = {rank: f"{key}/{rank}" for rank in ranks}
    try:
        store.wait(list(keys.values()), _TIMEOUT)
        return list(keys), None
    except DistStoreError:
        present = [rank for rank, each in keys.items() if store.check([each])]
        missing = ", ".join(f"rank {rank}{_pod(rank)}" for rank in keys if rank not in present)
        return present, f"{missing} {failure} within {_TIMEOUT}" if missing else None


def _pod(rank: int) -> str:
    return f" ({pod})" if (pod := pod_of(rank)) else ""


def _refusal(all_ranks: list[dict[str, Any]]) -> str | None:
    for rank, each in enumerate(all_ranks):
        if each["problem"]:
            return f"rank {rank} ({each['pod']}): {each['problem']}"
    first = all_ranks[0]
    for rank, each in enumerate(all_ranks):
        for name, value in each["facts"].items():
            if not name.startswith("_") and value != first["facts"].get(name):
                return (
                    f"rank {rank} ({each['pod']}) has {name} {value} and rank 0 ({first['pod']}) has "
                    f"{first['facts'].get(name)}: it must be the same on all pods"
                )
    return None
