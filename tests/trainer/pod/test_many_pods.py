"""Many pods at one store: what each asks of it does not grow with their number. Else they would stop one another."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import launched
import pytest
import ranks
from torch.distributed import DistError, TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally.environment import Patience
from torchtally.errors import LOST
from torchtally.pod import job_store, rendezvous
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.job_store import JobStore
from torchtally.pod.rendezvous import Rendezvous

MANY = 40
MOST = 15  # keys that a pod may ask for
KILLED = Failure(Kind.KNOWN, 137, "rank 1 was killed")


class Pods:
    """Pods without ranks, each in a thread, and the number of keys that each has asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asked = Counter[str]()
        self.told = told = set[str]()
        port = ranks.free_port()
        self.all = [Rendezvous("127.0.0.1", port, rank, MANY, f"pod-{rank}", Patience()) for rank in range(MANY)]

        class Counted:
            def __init__(self, prefix: str, store: Store) -> None:
                self._store, self._pod = PrefixStore(prefix, store), threading.current_thread().name

            def __getattr__(self, name: str) -> Callable[..., Any]:
                def call(*arguments: Any) -> Any:
                    asked[self._pod] += len(arguments[0]) if isinstance(arguments[0], list) else 1
                    return getattr(self._store, name)(*arguments)

                return call

        class Progress(rendezvous._Progress):
            """Without a wait for the first message."""

            def __init__(self) -> None:
                self.next = time.monotonic()

            def say(self, message: str) -> None:
                super().say(message)
                told.add(message)

        monkeypatch.setattr(job_store, "PrefixStore", Counted)
        monkeypatch.setattr(rendezvous, "_Progress", Progress)

    def each(self, function: Callable[[Rendezvous], Any], *pods: Rendezvous) -> "Callable[[], list[Any]]":
        """Begin to call `function` in a thread for each pod. Returns what waits for all of them."""
        found: dict[str, Any] = {}
        threads = [
            threading.Thread(target=lambda pod=pod: found.update({pod._pod: function(pod)}), name=pod._pod)
            for pod in pods
        ]
        for thread in threads:
            thread.start()

        def results() -> list[Any]:
            for thread in threads:
                thread.join()
            return [found[pod._pod] for pod in pods]

        return results

    def meet(self) -> None:
        """The last one comes when all others are there and know that it is missing."""
        *others, last = self.all
        joined = self.each(_join, *others)
        launched.until("the last one is missed", lambda: self.told)
        self.each(_join, last)()
        joined()


def _join(pod: Rendezvous) -> None:
    pod._store = pod._join()


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Pods:
    return Pods(monkeypatch)


def test_a_meeting_costs_a_pod_the_same_however_many_they_are(pods: Pods) -> None:
    pods.meet()
    assert all(pod._names.known == [f"pod-{rank}" for rank in range(MANY)] for pod in pods.all)
    assert max(pods.asked[pod._pod] for pod in pods.all[1:]) <= MOST
    assert any("pods have joined; missing: the pod with RANK=" in message for message in pods.told)


def test_the_search_for_a_cause_costs_a_pod_the_same_however_many_they_are(pods: Pods) -> None:
    """All have lost pod 1, which tells the cause later than most of them look for it."""
    pods.meet()
    for pod in pods.all:
        assert pod._store is not None
        pod._heartbeat = pod._start_heartbeat(pod._store.clone())
    pods.asked.clear()
    lost = Failure(Kind.CONSEQUENCE, LOST, "it lost another rank")
    first, killed, *others = pods.all
    ended = pods.each(lambda pod: pod.cause(lost), first, *others)
    launched.until("all others look for it", lambda: len(pods.asked) >= MANY - 1)
    assert pods.each(lambda pod: pod.cause(KILLED), killed)() == [KILLED]
    assert {each.text for each in ended()} == {"rank 1 was killed; it lost another rank"}
    assert max(pods.asked[pod._pod] for pod in others) <= MOST


SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_store_that_does_not_answer_is_given_up() -> None:
    """As when its node has lost its power: nothing says so."""
    port = ranks.free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            store = JobStore(TCPStore("127.0.0.1", port, None, False, wait_for_workers=False), 2, timeout=5)
            assert store.post(1, Failure(Kind.KNOWN, 3, "it failed")) == 1
            assert store.first(Kind.KNOWN) == (1, Failure(Kind.KNOWN, 3, "it failed"))
            launched.stop(server.pid)  # and wait until it has stopped
            with pytest.raises(DistError, match="no answer within 5 s"):
                store.keys.check(["complete"])
        finally:
            server.kill()
