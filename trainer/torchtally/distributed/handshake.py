"""The handshake before all other work: all ranks compare their settings, and start together or all end."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

from torchtally.distributed.failures import Failures
from torchtally.environment import pod_of
from torchtally.errors import Lost, Refused

_TIMEOUT = timedelta(minutes=30)  # a rank can be downloading its data
_FIRST_LOOK, _LOOK = 0.001, 0.2  # seconds after which a rank looks again: at first, and later
_LOOKS = 5000  # a second, at most, of all ranks together


def agree(
    store: Store,
    rank: int,
    world: int,
    pod: str,
    facts: Mapping[str, Any],
    problem: str | None,
    judge: Callable[[list[dict[str, Any]]], str | None] = lambda all_ranks: None,
    *,
    failures: Failures | None = None,
    call: str | None = None,
    timeout: timedelta | None = None,
) -> Mapping[str, Any]:
    """Compare the `facts` of all ranks through the job's store, without a process group; returns those of rank 0.

    `facts` are JSON values. They must be equal on all ranks, except those whose name starts with an underscore. Of
    these, `judge` says what is wrong: it receives the `pod` and the `facts` of all ranks.

    Raises Refused, with the same sentence on every rank, if facts differ or any rank has a `problem`. Raises Lost with
    the names of the ranks that do not come within the `timeout` (default: half an hour), or do not make a `call`
    between two steps, and the failure of a rank that is among `failures`.
    """
    waiting = _Waiting(store, world, failures, timeout or _TIMEOUT)
    joins = f"call {call}" if call else "join the handshake"
    rule = ": all ranks must call it for the same step" if call else ""
    store.set(f"facts/{rank}", json.dumps({"pod": pod, "problem": problem, "facts": dict(facts)}))
    if rank == 0:
        # Rank 0 compares, and the others read its verdict: O(world) messages.
        present, lost = waiting.for_all("facts", range(world), joins, rule)
        all_ranks = [json.loads(store.get(f"facts/{each}")) for each in present]
        refused = None if lost else _refusal(all_ranks) or judge(all_ranks)
        store.set("verdict", json.dumps({"lost": lost, "refused": refused, "facts": all_ranks[0]["facts"]}))
    else:
        waiting.for_verdict(joins, rule)
    verdict = json.loads(store.get("verdict"))
    # The master's store ends with its process, so rank 0 waits until all ranks have read the verdict.
    store.set(f"read/{rank}", "")
    if rank == 0:
        _, unread = waiting.for_all("read", present, "read the result of the handshake")
        verdict["lost"] = verdict["lost"] or unread
    if verdict["lost"]:
        raise Lost(verdict["lost"])
    if verdict["refused"]:
        raise Refused(verdict["refused"])
    agreed: dict[str, Any] = verdict["facts"]
    return agreed


class _Waiting:
    """Waits for the other ranks in one handshake."""

    def __init__(self, store: Store, world: int, failures: Failures | None, timeout: timedelta) -> None:
        self._store, self._world, self._failures, self._timeout = store, world, failures, timeout
        self._longest = max(_LOOK, world / _LOOKS)

    def for_all(self, key: str, ranks: Iterable[int], what: str, rule: str = "") -> tuple[list[int], str | None]:
        """Wait until each rank has set `key`; returns the ranks that have, and a sentence that names the others."""
        keys = {rank: f"{key}/{rank}" for rank in ranks}
        if self._come(list(keys.values())):
            return list(keys), None
        absent = self._absent(key, keys)
        return [rank for rank in keys if rank not in absent], self._told(absent, what, rule)

    def for_verdict(self, joins: str, rule: str) -> None:
        """Wait for rank 0, which can have begun to wait for others by the end of this rank's wait. Raises Lost."""
        if self._come(["verdict"]):
            return
        absent = self._absent("facts", range(self._world))
        if 0 in absent:
            raise Lost(self._told(absent, joins, rule))
        if not self._come(["verdict"]):
            raise Lost(self._told([0], "end the handshake"))

    def _absent(self, key: str, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not self._store.check([f"{key}/{rank}"])]

    def _told(self, ranks: list[int], what: str, rule: str = "") -> str | None:
        names = ", ".join(f"rank {rank}{_pod(rank)}" for rank in ranks)
        return f"{names} did not {what} within {self._timeout}{rule}" if names else None

    def _come(self, keys: list[str]) -> bool:
        """Wait for all keys, and return whether they are there. Raises the failure of a rank that has posted one."""
        ends, pause = time.monotonic() + self._timeout.total_seconds(), _FIRST_LOOK
        while not self._store.check(keys):  # its wait() warns of each timeout, so it could not be asked in between
            if self._failures and (failed := self._failures.first()):
                raise failed
            if time.monotonic() > ends:
                return False
            time.sleep(pause)
            pause = min(2 * pause, self._longest)
        return True


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
                name, value, other = _what_differs(name, value, first["facts"].get(name))
                return (
                    f"rank {rank} ({each['pod']}) has {name} {value} and rank 0 ({first['pod']}) has {other}: it must "
                    "be the same on all pods"
                )
    return None


def _what_differs(name: str, value: Any, other: Any) -> tuple[str, Any, Any]:
    """Of objects, what differs in them, with its name if that is one value."""
    if not (isinstance(value, dict) and isinstance(other, dict)):
        return name, value, other
    keys = [key for key in {**value, **other} if value.get(key) != other.get(key)]
    if len(keys) == 1:
        return f"{name} {keys[0]}", value.get(keys[0]), other.get(keys[0])
    return name, {key: value.get(key) for key in keys}, {key: other.get(key) for key in keys}
