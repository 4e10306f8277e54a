"""The store of a job, in the agent of pod 0: pods meet there, and post their failures and their heartbeats.

What all pods do costs each of them the same few requests, however many pods there are: what takes a request for each
pod, or an answer with a value of each, is pod 0's to do.
"""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from enum import StrEnum
from typing import Any

from torch.distributed import DistError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally.pod.failure import Failure, Kind

DEPARTED = b"departed"  # the last heartbeat of a pod that ends in an orderly way
_REQUESTS = 5000  # a second, at most, of all pods together that look for something


class Decision(StrEnum):
    """How a rendezvous ends."""

    MET = "met"  # all pods have joined
    GIVEN_UP = "given up"
    COMPLETE = "complete"  # the run has been completed before
    EXHAUSTED = "exhausted"  # the job has no retries left


def interval(count: int) -> float:
    """Seconds between two looks of each of `count` pods."""
    return max(0.2, count / _REQUESTS)


class JobStore:
    """The part of `store` that belongs to the entry points of `count` pods. All methods raise DistError."""

    def __init__(self, store: Store, count: int, timeout: float | None = None) -> None:
        """With a `timeout` in seconds, no request takes longer."""
        own = PrefixStore("torchtally", store)
        self.keys: Any = own if timeout is None else _WithTimeout(own, timeout)
        self.count = count

    def join(self, rank: int, start: str, pod: str) -> None:
        """Let pod 0 know of this start of pod `rank`."""
        self.keys.set(_beat(rank), "0")  # so that heartbeats() and stands() find one of each
        self.stand(rank, "")
        self.keys.append("joined", json.dumps([rank, start, pod]) + "\n")

    def joined(self) -> dict[int, tuple[str, str]]:
        """Return the last start and the name of each pod that has joined. For a pod that has joined."""
        lines = self.keys.get("joined").decode().splitlines()
        return {rank: (start, pod) for rank, start, pod in map(json.loads, lines)}

    def tell_missing(self, joined: int, missing: str) -> None:
        """As pod 0, tell the others which pods are missing."""
        self.keys.set("missing", json.dumps([joined, missing]))

    def missing(self) -> tuple[int, str]:
        """Return how many pods have joined, and the names of the others, once pod 0 has told them."""
        joined, missing = json.loads(self.keys.get("missing"))
        return joined, missing

    def decide(self, decision: Decision, value: Any) -> None:
        """End the rendezvous. The first decision stands."""
        self.keys.compare_set("decided", "", json.dumps([decision, value]))

    def decided(self, seconds: float) -> tuple[Decision, Any] | None:
        """Wait for the decision for some seconds."""
        if not self._comes("decided", seconds):
            return None
        decision, value = json.loads(self.keys.get("decided"))
        return Decision(decision), value

    def post(self, rank: int, failure: Failure) -> int:
        """Post the failure of pod `rank`. Returns its number among all failures, from 1."""
        self.keys.append("failed", f"{rank} ")
        number: int = self.keys.add("failures", 1)
        text = json.dumps([rank, failure.kind, failure.code, failure.text])
        self.keys.compare_set(_first(failure.kind), "", text)
        return number

    def failures(self) -> int:
        """Return how many failures have been posted."""
        number: int = self.keys.add("failures", 0)
        return number

    def failed(self) -> set[int]:
        """Return the pods that have posted a failure."""
        return set(map(int, self.keys.get("failed").split())) if self.failures() else set()

    def first(self, kind: Kind, seconds: float = 0.0) -> tuple[int, Failure] | None:
        """Wait for some seconds for the first failure of a kind. Returns it with the rank of its pod."""
        if not self._comes(_first(kind), seconds):
            return None
        rank, kind, code, text = json.loads(self.keys.get(_first(kind)))
        return rank, Failure(Kind(kind), code, text)

    def stand(self, rank: int, text: str) -> None:
        """Post where the ranks of pod `rank` stand; empty once they continue."""
        self.keys.set(_stands(rank), text)

    def stands(self) -> list[str]:
        """Return what each pod has posted; empty where none has."""
        return [each.decode() for each in self.keys.multi_get([_stands(rank) for rank in range(self.count)])]

    def beat(self, rank: int) -> None:
        self.keys.add(_beat(rank), 1)

    def depart(self, rank: int) -> None:
        """End the heartbeat of a pod in an orderly way."""
        self.keys.set(_beat(rank), DEPARTED.decode())

    def heartbeats(self) -> list[bytes]:
        """Return the last heartbeat of each pod."""
        found: list[bytes] = self.keys.multi_get([_beat(rank) for rank in range(self.count)])
        return found

    def succeeded(self) -> bool:
        """Whether a pod has departed without a failure: all ranks have passed the exit barrier then."""
        return DEPARTED in self.heartbeats() and not self.failures()

    def watch(self, rank: int) -> None:
        """Let pod 0 know of a pod that waits for the end of the run without a part in it."""
        self.keys.append("watchers", f"{rank} ")

    def watchers(self) -> set[int]:
        """Return those."""
        return set(map(int, self.keys.get("watchers").split())) if self.keys.check(["watchers"]) else set()

    def _comes(self, key: str, seconds: float) -> bool:
        if seconds <= 0:
            found: bool = self.keys.check([key])
            return found
        try:
            self.keys.wait([key], timedelta(seconds=seconds))  # which costs the store nothing meanwhile
        except DistStoreError:
            return False
        return True


class _WithTimeout:
    """A store whose requests raise DistError after `seconds`: TCP needs 15 minutes to find a node gone."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store, self._seconds = store, seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(*arguments: Any) -> Any:
            answer: Future[Any] = Future()
            threading.Thread(target=self._ask, args=[answer, name, arguments], daemon=True).start()
            try:
                return answer.result(self._seconds)
            except TimeoutError:
                raise DistError(f"no answer within {self._seconds} s") from None

        return request

    def _ask(self, answer: "Future[Any]", name: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer.set_result(getattr(self._store, name)(*arguments))
        except DistError as error:
            answer.set_exception(error)


def _stands(rank: int) -> str:
    return f"stands/{rank}"


def _beat(rank: int) -> str:
    return f"beat/{rank}"


def _first(kind: Kind) -> str:
    return f"first/{int(kind)}"
