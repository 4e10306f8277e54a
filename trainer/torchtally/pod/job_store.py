"""The store of a job, in the agent of pod 0: pods post their failures and their heartbeats there."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally.pod.failure import Failure, Kind

DEPARTED = b"departed"  # the last heartbeat of a pod that ends in an orderly way


class JobStore:
    """The part of `store` that belongs to the entry points of `count` pods. All methods raise DistError."""

    def __init__(self, store: Store, count: int, timeout: float | None = None) -> None:
        """With a `timeout` in seconds, no request takes longer."""
        own = PrefixStore("torchtally", store)
        self.keys: Any = own if timeout is None else _WithTimeout(own, timeout)
        self.count = count

    def post(self, rank: int, failure: Failure) -> int:
        """Post the failure of pod `rank`. Returns its number among all failures, from 1."""
        number: int = self.keys.add("failures", 1)
        self.keys.set(f"failure/{number}", json.dumps([rank, failure.kind, failure.code, failure.text]))
        return number

    def failures(self, after: int = 0) -> Iterator[tuple[int, Failure]]:
        """Yield each posted failure with the rank of its pod, but the first `after`."""
        for number in range(after + 1, self.keys.add("failures", 0) + 1):
            rank, kind, code, text = json.loads(self.keys.get(f"failure/{number}"))
            yield rank, Failure(Kind(kind), code, text)

    def stand(self, rank: int, text: str) -> None:
        """Post where the ranks of pod `rank` stand; empty once they go on."""
        self.keys.set(_stands(rank), text)

    def stands(self) -> list[str]:
        """Return what each pod has posted; empty where none has."""
        keys = [_stands(rank) for rank in range(self.count)]
        return [self.keys.get(key).decode() if self.keys.check([key]) else "" for key in keys]

    def beat(self, rank: int) -> None:
        self.keys.add(_beat(rank), 1)

    def reset_beat(self, rank: int) -> None:
        """Before the first heartbeat of a pod, so that heartbeats() finds one of each."""
        self.keys.set(_beat(rank), "0")

    def depart(self, rank: int) -> None:
        """End the heartbeat of a pod in an orderly way."""
        self.keys.set(_beat(rank), DEPARTED.decode())

    def heartbeats(self) -> list[bytes]:
        """Return the last heartbeat of each pod."""
        found: list[bytes] = self.keys.multi_get([_beat(rank) for rank in range(self.count)])
        return found


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
