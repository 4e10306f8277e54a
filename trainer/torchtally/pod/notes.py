"""What the pods of a job leave each other in the store of pod 0: failures, and a heartbeat."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally.pod.failure import Failure, Kind

DONE = b"done"  # the last beat of a pod that has said all


class Notes:
    """What the pods tell each other, apart from all else that is in `store`."""

    def __init__(self, store: Store, seconds: float | None = None) -> None:
        own = PrefixStore("torchtally", store)
        self.store: Any = own if seconds is None else _Bounded(own, seconds)

    def leave(self, rank: int, failure: Failure) -> int:
        """Tell all pods of the failure of pod `rank`; returns its place among all that were told, from 1."""
        place: int = self.store.add("failures", 1)
        self.store.set(f"failure/{place}", json.dumps([rank, failure.kind, failure.code, failure.text]))
        return place

    def read(self, after: int) -> Iterator[tuple[int, Failure]]:
        """The failures that were told, with their pods, less the first `after`."""
        for place in range(after + 1, self.store.add("failures", 0) + 1):
            rank, kind, code, text = json.loads(self.store.get(f"failure/{place}"))
            yield rank, Failure(Kind(kind), code, text)

    def beats(self, count: int) -> list[bytes]:
        found: list[bytes] = self.store.multi_get([f"beat/{rank}" for rank in range(count)])
        return found


class _Bounded:
    """A store whose requests raise DistError after so many seconds: TCP finds a node gone after 15 minutes."""

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


class Beats:
    """When each pod's beat was last a new one, by this pod's clock: clocks of different pods are never compared."""

    def __init__(self) -> None:
        self._new: dict[int, tuple[bytes, float]] = {}

    def silent(self, beats: list[bytes], seconds: float) -> list[int]:
        """The pods whose beat has been the same for `seconds`."""
        now = time.monotonic()
        for rank, beat in enumerate(beats):
            if rank not in self._new or self._new[rank][0] != beat:
                self._new[rank] = (beat, now)
        return [rank for rank, (beat, since) in self._new.items() if beat != DONE and now - since >= seconds]
