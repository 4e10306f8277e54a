"""The rendezvous of a job's pods, as torchrun's agent asks for it, over the store in the agent of pod 0."""

import contextlib
import resource
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta

from torch.distributed import (  # type: ignore[attr-defined]  # they are there, unannounced
    DistError,
    DistNetworkError,
    DistStoreError,
    TCPStore,
)
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from torchtally import compat, events
from torchtally.environment import Patience
from torchtally.errors import LOST, Exhausted, Lost
from torchtally.log import log
from torchtally.pod import address, cause, signals
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.heartbeat import Heartbeat, wait_until_departed
from torchtally.pod.job_store import DEPARTED, Decision, JobStore, interval
from torchtally.pod.names import Names

BACKEND = "torchtally"
# All in seconds.
TIMEOUT = 900  # for all pods to join; torchrun's own --rdzv-conf=timeout=… changes it
_PROGRESS = 30  # between two messages about the pods that are missing
_GATHER = 0.2  # between two of pod 0's looks for pods that have joined
_ASK = 5  # between two questions of the others for its decision: Python hears no signal meanwhile
_ANNOUNCE = 15  # for the pods of a run that is over to learn of it, if they were started again, too
_TELLING = 1000  # pods that tell each other where their ranks stand: each reads what all have told
_SHARE = 5  # for an answer of the store, while ranks hang
_DEPART = 15  # for the other pods to depart, after which pod 0 takes the store with it


class Complete(Exception):
    """Nothing is left for this pod to do: why, in a few words."""


class Rendezvous(RendezvousHandler):
    """Pod `rank` of `count` joins the others. Outside a job, the port is 0: any that is free."""

    def __init__(self, host: str, port: int, rank: int, count: int, pod: str, patience: Patience) -> None:
        self._address, self._port, self._rank, self._count, self._pod = host, port, rank, count, pod
        self._resolved, self._in_job, self._patience = host, port != 0, patience
        self._timeout, self._run_id = float(TIMEOUT), ""
        # A pod that is started again has the same rank and name: this differs.
        self._start = uuid.uuid4().hex[:8]
        self._names = Names()
        self._store: TCPStore | None = None
        self._heartbeat: Heartbeat | None = None
        self._board: JobStore | None = None
        self._added = False  # to a job that runs without this pod
        self.before_kill: Callable[[], None] = lambda: None  # of ranks that do not notice that a peer is gone

    def create(self, parameters: RendezvousParameters) -> RendezvousHandler:
        """Take torchrun's parameters, as its registry of backends asks."""
        self._timeout = float(parameters.get_as_int("timeout", TIMEOUT) or TIMEOUT)
        self._run_id = parameters.run_id
        return self

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all pods. Raises Lost with the names of those that are missing, Complete, and Exhausted."""
        if self._store is None:
            self._store = self._join()
            if self._in_job:
                events.emit(events.Rendezvous(pods=self._count), events.Source(pod=self._pod))
            self._names.publish()
            self._heartbeat = self._start_heartbeat(self._store.clone())  # a wait blocks all calls on its connection
            signals.handle()
        bootstrap = RendezvousStoreInfo(self._resolved, self._port)
        store = _AgentStore(self._run_id, self._store, interval(self._count))
        return RendezvousInfo(store, self._rank, self._count, bootstrap)

    def announce_complete(self) -> None:
        """As pod 0, let the pods that come know that the run is complete. Those that have succeeded never come."""
        self._announce(Decision.COMPLETE, "")

    def announce_exhausted(self, sentence: str) -> None:
        """As pod 0, let the pods that come know that the job has no retries left."""
        self._announce(Decision.EXHAUSTED, sentence)

    def _announce(self, decision: Decision, text: str) -> None:
        if self._count == 1:
            return
        until = time.monotonic() + _ANNOUNCE
        with contextlib.suppress(DistError):
            store = JobStore(self._connect(until), self._count)
            store.decide(decision, text)
            _wait_until_learned(store, range(1, self._count), _ANNOUNCE)

    def depart(self) -> None:
        """End this pod's part after success. Pod 0 keeps the store until the others have passed the exit barrier.

        Raises Lost if pod 0 has failed meanwhile: it starts again, and meets none that has succeeded.
        """
        if self._store is None or self._heartbeat is None:
            return
        store = JobStore(self._store, self._count, _DEPART)
        try:
            if self._rank != 0:
                self._follow(store)
            self._heartbeat.stop(store)
            if self._rank == 0:
                wait_until_departed(store, _DEPART, but=store.failed())
                _wait_until_learned(store, store.watchers(), _DEPART)
        except DistError:
            if self._rank != 0:
                raise Lost(f"{self._names.one(0)} went away before all ranks had succeeded") from None

    def _follow(self, store: JobStore) -> None:
        """Wait until pod 0 has succeeded or failed, if a pod has failed. Raises Lost and DistError."""
        succeeded = False
        while store.failures() and not succeeded:
            succeeded = store.heartbeats()[0] == DEPARTED
            if 0 in store.failed():  # which departs as well
                raise Lost(f"the ranks of {self._pod} have succeeded, and {self._names.one(0)} has failed")
            time.sleep(0.2)

    def cause(self, own: Failure) -> Failure:
        """Return the failure that this pod ends with: `own`, or the one that caused it."""
        if self._store is None or self._heartbeat is None or self._count == 1:
            return own
        return cause.find(
            own, JobStore(self._store, self._count), self._heartbeat, self._rank, self._names, self._patience.cause
        )

    def share(self, own: str | None) -> list[str]:
        """Tell the other pods where this one's ranks stand; return what all have told. Raises DistError."""
        if self._store is None or self._count > _TELLING:
            return [own or ""]
        if self._board is None:
            self._board = JobStore(self._store.clone(), self._count, _SHARE)
        self._board.stand(self._rank, own or "")
        return self._board.stands()

    def _join(self) -> TCPStore:
        until = time.monotonic() + self._timeout
        while True:
            store = self._connect(until)
            try:
                self._register(JobStore(store, self._count, self._patience.silence), until)
                return store
            except DistError:
                # The other pods were about to fail, and their store is gone.
                if self._rank == 0:
                    raise
                if self._added:
                    until = time.monotonic() + self._timeout

    def _connect(self, until: float) -> TCPStore:
        timeout = timedelta(seconds=self._patience.silence)
        if self._rank == 0:
            return self._serve(timeout)
        missing = f"{self._names.one(0)} does not answer at {self._address}:{self._port}"
        progress = _Progress()
        while True:
            try:
                # TCPStore itself would wait without a message, and deaf to signals.
                with socket.create_connection((self._address, self._port), timeout=5) as connection:
                    # Given a name, TCPStore asks for IPv6 first, in all search domains: seconds for each connection
                    # where a cluster has no DNS server for names that are not its own.
                    if connection.family == socket.AF_INET:
                        self._resolved = connection.getpeername()[0]
                return TCPStore(self._resolved, self._port, None, False, timeout, wait_for_workers=False)
            except (OSError, DistError) as error:
                why = str(error).splitlines()[0]
            if time.monotonic() > until:
                if self._added:
                    raise Complete(f"{self._names.one(0)} is gone, and so is the job that this pod was added to")
                raise Lost(f"{missing} ({why}): gave up after {self._timeout:.0f} s")
            progress.say(f"{missing} yet ({why})")
            time.sleep(0.5)

    def _serve(self, timeout: timedelta) -> TCPStore:
        """As pod 0, open the store."""
        _allow_files()
        try:
            listener = address.listener(self._address, self._port, self._count)
        except OSError as error:
            raise DistNetworkError(f"port {self._port} cannot be opened: {error.strerror}") from None
        if listener is None:
            # Not by its own address: a pod's Service may not be known yet.
            return TCPStore("localhost", self._port, None, True, timeout, wait_for_workers=False, multi_tenant=True)
        self._resolved, self._port = listener.getsockname()[:2]
        return TCPStore(
            self._resolved,
            self._port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def _register(self, store: JobStore, until: float) -> None:
        # Pods that met before this start may still be ending: pod 0 waits for the last heartbeat of each.
        if store.decided(0) is None:
            store.join(self._rank, self._start, self._pod)
        progress = _Progress()
        while (decided := store.decided(self._turn(min(progress.next, until)))) is None:
            if self._rank == 0:
                self._gather(store)
            late = time.monotonic() > until
            if late or progress.due:
                joined, missing = store.missing()
                if late:
                    store.decide(Decision.GIVEN_UP, f"{missing} did not join within {self._timeout:.0f} s")
                else:
                    progress.say(f"{joined} of {self._count} pods have joined; missing: {missing}")
        match decided:
            case Decision.GIVEN_UP, sentence:
                if self._rank == 0:
                    time.sleep(2)  # for the others to read it
                raise Lost(sentence)
            case Decision.COMPLETE, _:
                store.keys.set(f"learned/{self._rank}", "")
                raise Complete("the run is complete")
            case Decision.EXHAUSTED, sentence:
                store.keys.set(f"learned/{self._rank}", "")
                raise Exhausted(sentence)
            case _, pods:
                # Pod 0 decides how many there are: a job can have been scaled between the starts of two pods.
                self._names.known, store.count = [pod for _, pod in pods], len(pods)
                if self._rank >= len(pods):
                    self._wait_outside(store)
                self._count = len(pods)
                if pods[self._rank][0] != self._start:
                    self._wait_for_restart(store, until)

    def _turn(self, until: float) -> float:
        """For how many seconds to wait at a time. Pod 0 looks for pods that come; the others wait for its decision."""
        # Shorter than the store's limit for an answer, which the wait counts towards.
        longest = _GATHER if self._rank == 0 else min(_ASK, self._patience.silence / 2)
        return max(0.1, min(until - time.monotonic(), longest))

    def _gather(self, store: JobStore) -> None:
        """As pod 0, decide that all pods are there, or tell the others which are missing."""
        joined = store.joined()
        missing = [rank for rank in range(self._count) if rank not in joined]
        store.tell_missing(len(joined), self._names.several(missing))
        if not missing:
            store.decide(Decision.MET, [joined[rank] for rank in range(self._count)])

    def _wait_outside(self, store: JobStore) -> None:
        """Wait as a pod that was added to a running job. Raises Complete once that succeeds, DistError if it ends."""
        if not self._added:
            log.warning(
                f"{self._pod} was added to a job of {store.count} pods, which runs and is not elastic: it takes no "
                "part until all pods start again"
            )
        self._added = True
        store.watch(self._rank)
        while not store.succeeded():
            time.sleep(0.5)
        store.keys.set(f"learned/{self._rank}", "")
        raise Complete(f"the run is complete, without {self._pod}")

    def _wait_for_restart(self, store: JobStore, until: float) -> None:
        """The others still run with this pod before its restart. Wait until they end, which a failure has them do."""
        if self._rank not in store.failed():  # else they know, and this would hide a cause that they still look for
            store.post(self._rank, Failure(Kind.KNOWN, LOST, f"{self._pod} was started again"))
        log.info(f"the other pods still run with {self._pod} as it was before: waiting for them to start again")
        while time.monotonic() < until:
            store.keys.check(["decided"])  # raises DistError once the store has gone
            time.sleep(0.5)
        raise Lost(f"{self._pod} was started again, and the other pods were not within {self._timeout:.0f} s")

    def _start_heartbeat(self, connection: Store) -> Heartbeat:
        def open_exit_barrier() -> None:
            with contextlib.suppress(DistError):
                PrefixStore(self._run_id, connection).set(compat.exit_barrier_key(), "")

        store = JobStore(connection, self._count)
        heartbeat = Heartbeat(store, self._rank, self._names, open_exit_barrier, self.before_kill, self._patience)
        heartbeat.start()
        return heartbeat


class _AgentStore(PrefixStore):
    """The agent's part of the store, in which it waits for the other pods' ranks. In C++ it is deaf to signals."""

    def __init__(self, prefix: str, store: Store, seconds: float) -> None:
        """Look every some `seconds` for what it waits for."""
        super().__init__(prefix, store)
        self._seconds = seconds

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        until = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self.check(keys):
            if time.monotonic() > until:
                raise DistStoreError(f"{keys} did not come in time")
            time.sleep(self._seconds)


class _Progress:
    """A message now and then, the first one soon."""

    def __init__(self) -> None:
        self.next = time.monotonic() + 5

    @property
    def due(self) -> bool:
        return time.monotonic() > self.next

    def say(self, message: str) -> None:
        if self.due:
            log.info(message)
            self.next = time.monotonic() + _PROGRESS


def _wait_until_learned(store: JobStore, ranks: Iterable[int], seconds: float) -> None:
    """As pod 0, wait until these pods know how the run has ended."""
    learned, until = [f"learned/{rank}" for rank in ranks], time.monotonic() + seconds
    while learned and time.monotonic() < until and not store.keys.check(learned):
        time.sleep(0.2)


def _allow_files() -> None:
    """Let this process have as many connections as the machine allows: each pod has one, and so has each rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS' limit is lower than the one that it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
