"""The meeting of N pods at one store, and the store's load while they wait, send heartbeats, and look for a failure.

many_pods [N ...]  one N after the other; by default SIZES

The store, the rendezvous, the heartbeat, the handshake, and the search for a failure's cause are those of a job. The
agents are threads of a few processes and start no ranks: a further thread takes the part of a rank in the handshake.
All of them share the cores of this machine, which the pods of a job have for themselves.
"""

import ctypes
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is there, unannounced
from torch.distributed.distributed_c10d import PrefixStore, Store

from bench.processes import free_port
from bench.sample import emit
from torchtally import compat, log
from torchtally.distributed import handshake
from torchtally.environment import Patience
from torchtally.errors import LOST, SIGNALLED
from torchtally.pod import job_store
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.rendezvous import Rendezvous

SIZES = (10, 100, 300, 1000)
_SECONDS = 2.0  # for which the load is measured: whole periods of a heartbeat
_SETTLE = 1.5  # for all pods to have begun what they then do
_PROCESSES = 6
_REQUESTS = {"get": 2, "multi_get": 2}  # a TCPStore waits for the keys first, which is a request as well
_ERROR = "rank 1 (demo-worker-0) was ended by signal 9 (SIGKILL)"


@dataclass
class _Load:
    """What a process has done so far."""

    requests: int
    cpu: float  # seconds
    at: float


class _Counted:
    """A PrefixStore that counts the requests of its process."""

    requests = 0

    def __init__(self, prefix: str, store: Store) -> None:
        self._store = PrefixStore(prefix, store)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        _Counted.requests += _REQUESTS.get(name, 1)
        call: Callable[..., Any] = getattr(self._store, name)
        return call


class _Pod(Rendezvous):
    """A pod without ranks."""

    def join(self) -> float:
        """Returns when it knew that all pods are there."""
        self._store = self._join()
        return time.monotonic()

    def agree(self) -> float:
        """Take part in the handshake of the ranks."""
        assert self._store is not None
        facts = {"number of training samples": 60000, "device": "cpu", "PyTorch": torch.__version__}
        handshake.agree(self._store.clone(), self._rank, self._count, self._pod, facts, None)
        return time.monotonic()

    def beat(self) -> float:
        assert self._store is not None
        self._heartbeat = self._start_heartbeat(self._store.clone())
        return time.monotonic()

    def fail(self) -> float:
        """Pod 1 fails, a second after the others have lost it. Returns when it was known, or infinity."""
        if self._rank == 1:
            time.sleep(1)
            own = Failure(Kind.KNOWN, SIGNALLED + 9, _ERROR)
        else:
            own = Failure(Kind.CONSEQUENCE, LOST, f"rank {self._rank} ({self._pod}) lost another rank")
        found = self.cause(own)
        return time.monotonic() if found.text.startswith(_ERROR) else float("inf")


class _Process:
    """A process with some of the pods, forked: an import of torch in each would take longer than all else."""

    def __init__(self, ranks: Sequence[int], count: int, port: int) -> None:
        forked = multiprocessing.get_context("fork")
        self._connection, there = forked.Pipe()
        self._process = forked.Process(target=_serve, args=[there, ranks, count, port], daemon=True)
        self._process.start()

    def ask(self, what: str) -> None:
        self._connection.send(what)

    def answer(self) -> Any:
        return self._connection.recv()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, ranks: Sequence[int], count: int, port: int) -> None:
    log.log.disabled = True
    job_store.PrefixStore = _Counted  # type: ignore[attr-defined,assignment]
    pods = [_Pod("127.0.0.1", port, rank, count, f"demo-worker-{rank - 1}", Patience()) for rank in ranks]
    with ThreadPoolExecutor(len(pods)) as threads:
        begun: Iterator[float] = iter(())
        while True:
            match connection.recv():
                case "load":
                    connection.send(_Load(_Counted.requests, time.process_time(), time.monotonic()))
                case "ended":
                    connection.send(max(begun))
                case what:
                    begun = threads.map(lambda pod, what=what: getattr(pod, what)(), pods)


class _Job:
    """N pods: pod 0 and the last one have a process each, the others share some."""

    def __init__(self, count: int, port: int) -> None:
        between = [range(first, count - 1, _PROCESSES) for first in range(1, _PROCESSES + 1)]
        self._processes = [_Process(ranks, count, port) for ranks in ([0], *filter(None, between), [count - 1])]

    def all_but_the_last(self, what: str) -> None:
        for process in self._processes[:-1]:
            process.ask(what)

    def the_last(self, what: str) -> None:
        self._processes[-1].ask(what)

    def all(self, what: str) -> float:
        """Returns when they were asked."""
        now = time.monotonic()
        self.all_but_the_last(what)
        self.the_last(what)
        return now

    def cpu_of_pod_0(self) -> float:
        """CPU seconds of its process, which has the store, so far."""
        load: _Load = self._answers("load")[0]
        return load.cpu

    def ended(self) -> float:
        """When the last of all ended what it was asked for."""
        last: float = max(self._answers("ended"))
        return last

    def load(self) -> tuple[float, float]:
        """Requests of all per second, and the CPU seconds per second of the process of pod 0."""
        before = self._answers("load")
        time.sleep(_SECONDS)
        after = self._answers("load")
        requests = sum(now.requests - then.requests for now, then in zip(after, before, strict=True))
        seconds = after[0].at - before[0].at
        return requests / seconds, (after[0].cpu - before[0].cpu) / seconds

    def end(self) -> None:
        for process in self._processes:
            process.end()

    def _answers(self, what: str) -> list[Any]:
        for process in self._processes:
            process.ask(what)
        return [process.answer() for process in self._processes]


def measure(count: int, port: int) -> None:
    """Let `count` pods meet, agree, send heartbeats, and fail."""
    job = _Job(count, port)
    try:
        job.all_but_the_last("join")
        _wait_for(count - 1, port)
        _emit_load("waiting for the last pod", count, job)
        began, before = time.monotonic(), job.cpu_of_pod_0()
        job.the_last("join")
        _emit("from the last pod's arrival until all know", count, job, began)
        emit("meeting, store's CPU", 1000 * (job.cpu_of_pod_0() - before), "ms", "lower", pods=count)
        began = job.all("agree")
        _emit("handshake of all ranks", count, job, began)
        job.all("beat")
        _emit_load("heartbeats", count, job)
        began = job.all("fail")
        _emit("until all know a failure's cause", count, job, began)
    finally:
        job.end()


def _wait_for(joined: int, port: int) -> None:
    """Wait until so many pods have joined."""
    store = job_store.JobStore(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False), joined + 1)
    while len(store.joined()) < joined:
        time.sleep(0.1)


def _emit(what: str, count: int, job: _Job, began: float) -> None:
    if math.isinf(ended := job.ended()):
        sys.exit(f"{count} pods: one of them did not learn the cause of the failure")
    emit("meeting", ended - began, "s", "lower", what=what, pods=count)


def _emit_load(what: str, count: int, job: _Job) -> None:
    time.sleep(_SETTLE)
    requests, cpu = job.load()
    emit("store", requests, "requests/s", "lower", what=what, pods=count)
    emit("store, CPU", 100 * cpu, "% of a core", "lower", what=what, pods=count)


def main() -> None:
    compat.silence_cpp_log()
    # c10d asks for the name of each connection's address: of a DNS server, for seconds where none answers.
    ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")
    for count in map(int, sys.argv[1:] or SIZES):
        measure(count, free_port())


if __name__ == "__main__":
    main()
