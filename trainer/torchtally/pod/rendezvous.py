"""The pods of a job: their agents meet, hear each other's heartbeat, and tell each other who failed first.

All of it goes through the store in the agent of pod 0, which torchrun's ranks use as well. A pod that fails leaves a
note there; one that is lost, or frozen, leaves nothing, and is missed by its heartbeat.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, DistStoreError, TCPStore  # type: ignore[attr-defined]  # it is there, unannounced
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.utils import store as elastic_store

from torchtally import events
from torchtally.errors import LOST, Lost
from torchtally.pod import signals
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.notes import DONE, Beats, Notes

BACKEND = "torchtally"
# All in seconds.
PATIENCE = 900  # until a job whose pods do not all come has failed; torchrun's own --rdzv-conf=timeout=… changes it
SILENCE = 60  # without a heartbeat until a pod counts as lost: a pod frozen for half of it goes on afterwards
GRACE = 30  # for a rank to see by itself that a peer is gone, and to finish what it writes; then it is ended
_BEAT = 1
_NEWS = 30  # between two lines about who is still missing
_MISSED = 3  # without a heartbeat, in a job that has failed, until a pod is said to have gone
_TELLING = 15  # for the pods of a run that is complete to hear it, if they were started again, too
_HEARSAY = 4  # for a cause elsewhere to show before a failure here that nobody can explain counts as the cause
_SEARCH = 6  # for the cause to be found
_LINGER = 15  # for the other pods to end, after which pod 0 takes the store with it


class Complete(Exception):
    """There is nothing left to do: pod 0 has found the run complete."""


class Peers(RendezvousHandler):
    """Pod `rank` of `count`, as torchrun's agent wants to meet the others."""

    def __init__(self, address: str, port: int, rank: int, count: int, pod: str) -> None:
        self._address, self._port, self._rank, self._count, self._pod = address, port, rank, count, pod
        self._reached = address
        self._patience, self._run_id = float(PATIENCE), ""
        # A pod that starts again has the same rank and name: this tells the two apart.
        self._life = uuid.uuid4().hex
        self._names: list[str] = []
        self._store: TCPStore | None = None
        self._heard: PrefixStore | None = None  # torchrun's part of it
        self._listener: threading.Thread | None = None
        self._answered, self._doomed, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._told: Failure | None = None  # the first cause that another pod told
        self._store_is_gone = False
        self._given_up = False

    def create(self, parameters: RendezvousParameters) -> RendezvousHandler:
        """What torchrun's registry calls."""
        self._patience = float(parameters.get_as_int("timeout", PATIENCE) or PATIENCE)
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
        """Wait for all pods. Raises Lost with the names of those that did not come, and Complete."""
        if self._store is None:
            self._store = self._meet()
            events.emit(events.Rendezvous(pods=self._count), events.Source(pod=self._pod))
            os.environ["TORCHTALLY_PODS"] = json.dumps(self._names)  # for the ranks, which name each other's
            heard = self._store.clone()  # a wait on one connection blocks all other calls on it
            self._heard = PrefixStore(self._run_id, heard)
            self._listener = threading.Thread(target=self._listen, args=[Notes(heard)], daemon=True)
            self._listener.start()
            threading.Thread(target=self._watch, daemon=True).start()
            signals.handle()
        where = RendezvousStoreInfo(self._reached, self._port)
        return RendezvousInfo(_AgentStore(self._run_id, self._store), self._rank, self._count, where)

    def tell_complete(self) -> None:
        """As pod 0, tell the pods that come that the run is complete; those that have succeeded never come."""
        others = [f"heard/{rank}" for rank in range(1, self._count)]
        with contextlib.suppress(DistError):
            store = Notes(self._open(time.monotonic() + _TELLING)).store
            store.set("complete", "")
            until = time.monotonic() + _TELLING
            while others and time.monotonic() < until and not store.check(others):
                time.sleep(0.2)

    # How they meet.

    def _meet(self) -> TCPStore:
        until = time.monotonic() + self._patience
        while True:
            store = self._open(until)
            try:
                self._register(Notes(store, SILENCE), until)
                return store
            except DistError:
                # The others were in the middle of failing, and their store went with them.
                if self._rank == 0:
                    raise

    def _open(self, until: float) -> TCPStore:
        timeout = timedelta(seconds=SILENCE)
        if self._rank == 0:
            # Not by its own address: a pod's Service may not be known yet.
            return TCPStore("localhost", self._port, None, True, timeout, wait_for_workers=False, multi_tenant=True)
        missing = f"{self._name(0)} does not answer at {self._address}:{self._port}"
        news = _News()
        while True:
            try:
                # TCPStore would wait by itself, but in silence, and deaf to signals.
                with socket.create_connection((self._address, self._port), timeout=5) as answered:
                    # By name TCPStore asks for IPv6 first, in all search domains and in none: seconds for each
                    # connection where a cluster has nobody to ask about names that are not its own.
                    if answered.family == socket.AF_INET:
                        self._reached = answered.getpeername()[0]
                return TCPStore(self._reached, self._port, None, False, timeout, wait_for_workers=False)
            except (OSError, DistError) as error:
                why = str(error).splitlines()[0]
            if time.monotonic() > until:
                raise Lost(f"{missing} ({why}): given up after {self._patience:.0f} s")
            news.tell(f"{missing} yet ({why})")
            time.sleep(0.5)

    def _register(self, notes: Notes, until: float) -> None:
        here = [f"here/{rank}" for rank in range(self._count)]
        notes.store.set(f"beat/{self._rank}", "0")
        notes.store.set(here[self._rank], json.dumps([self._life, self._pod]))
        news = _News()
        while not notes.store.check(["met"]):
            if self._rank == 0 and notes.store.check(here):
                notes.store.set("met", json.dumps([json.loads(each) for each in notes.store.multi_get(here)]))
                break
            late = time.monotonic() > until
            if late or news.due:
                missing = [rank for rank, key in enumerate(here) if not notes.store.check([key])]
                if late:
                    sentence = f"{self._list(missing)} did not come within {self._patience:.0f} s"
                    notes.store.set("off", sentence)
                    time.sleep(2)  # for the others to read it
                    raise Lost(sentence)
                news.tell(f"{self._count - len(missing)} of {self._count} pods are here, not yet {self._list(missing)}")
            if notes.store.check(["off"]):
                raise Lost(notes.store.get("off").decode())
            if notes.store.check(["complete"]):
                notes.store.set(f"heard/{self._rank}", "")
                raise Complete
            time.sleep(0.2)
        lives = json.loads(notes.store.get("met"))
        self._names = [pod for _, pod in lives]
        if lives[self._rank][0] != self._life:
            self._outlive(notes, until)

    def _outlive(self, notes: Notes, until: float) -> None:
        """The others run with this pod's former life. Tell them that it has ended, and wait until they have, too."""
        notes.leave(self._rank, Failure(Kind.KNOWN, LOST, f"{self._pod} was started again"))
        _say(f"the other pods still run with {self._pod} as it was before: waiting for them to start again")
        while time.monotonic() < until:
            notes.store.check(["met"])  # raises DistError once the store has gone
            time.sleep(0.5)
        raise Lost(f"{self._pod} was started again, and the other pods were not within {self._patience:.0f} s")

    # How they watch each other.

    def _listen(self, notes: Notes) -> None:
        """Beat, and hear what the others say."""
        heard = Beats()
        read = 0
        with contextlib.suppress(DistError):
            while not self._ended.is_set():
                notes.store.add(f"beat/{self._rank}", 1)
                for rank, failure in notes.read(read):
                    read += 1
                    self._doomed.set()
                    if rank != self._rank and failure.kind == Kind.KNOWN:
                        self._told = self._told or failure
                        _say(failure.text)
                if self._rank == 0 and read == 0 and (silent := heard.silent(notes.beats(self._count), SILENCE)):
                    text = f"{self._list(silent)} has not been heard of for {SILENCE} s: lost, or frozen"
                    notes.leave(silent[0], Failure(Kind.KNOWN, LOST, text))
                self._answered.set()
                self._ended.wait(_BEAT)
            return
        self._store_is_gone = True
        self._doomed.set()

    def _watch(self) -> None:
        """End the ranks of this pod when another one has failed or gone and they do not notice it."""
        # A store that is frozen or cut off answers nothing, for ever. Counted in steps, not by the clock, which goes on
        # while this pod is frozen itself.
        quiet = 0
        while quiet < SILENCE and not self._doomed.wait(1):
            quiet = 0 if self._answered.is_set() else quiet + 1
            self._answered.clear()
        if quiet >= SILENCE:
            self._store_is_gone = True
        # A pod that was told to stop has its own time for it.
        while not self._ended.wait(GRACE) and not signals.begun():
            self._given_up |= any(signals.ranks())  # before they end, at which the main thread asks for it
            if not signals.kill_ranks() and not self._store_is_gone:
                self._open_exit_barrier()

    def _open_exit_barrier(self) -> None:
        """The agents whose ranks have succeeded would wait for the others 5 minutes, whatever became of them."""
        if self._heard is not None:
            with contextlib.suppress(DistError):
                self._heard.set(api._TERMINAL_STATE_SYNC_ID + elastic_store._LAST_MEMBER_CHECKIN, "")

    # How they end.

    def leave(self) -> None:
        """This pod has done its part. Pod 0 keeps the store until the others have seen that all have done theirs."""
        if self._store is not None:
            with contextlib.suppress(DistError):
                notes = Notes(self._store, _LINGER)
                self._hush(notes)
                if self._rank == 0:
                    self._linger(notes, _LINGER, without={rank for rank, _ in notes.read(0)})

    def cause(self, own: Failure) -> Failure:
        """What this pod's failure comes of: itself, or what came first elsewhere, then with the exit code LOST."""
        if self._store is None or self._count == 1:
            return own
        if self._given_up:
            own = Failure(Kind.CONSEQUENCE, LOST, f"the ranks of {self._pod} did not notice it and were ended")
        found = _Found()
        asking = threading.Thread(target=self._ask, args=[Notes(self._store), own, found], daemon=True)
        if not self._store_is_gone:
            asking.start()
            asking.join(3 * _SEARCH)  # a store that is frozen does not answer
        if not found.searched and own.kind != Kind.KNOWN:
            found.elsewhere = self._told  # before the store went
        if found.elsewhere is not None:
            return Failure(Kind.CONSEQUENCE, LOST, f"{found.elsewhere.text}; {own.text}")
        # Whose failure was told first was not caused by the store's end.
        if own.kind == Kind.KNOWN or (own.kind == Kind.UNEXPLAINED and (found.place == 1 or found.searched)):
            return own
        who = "another pod" if found.searched else f"{self._name(0)}, which all others ask,"
        return Failure(Kind.CONSEQUENCE, LOST, f"{who} went away; {own.text}")

    def _ask(self, notes: Notes, own: Failure, found: "_Found") -> None:
        with contextlib.suppress(DistError):
            found.place = notes.leave(self._rank, own)
            found.elsewhere = self._search(notes, own)
            found.searched = True
            self._hush(notes)
            if self._rank == 0:
                self._linger(notes, _SEARCH + 1)

    def _search(self, notes: Notes, own: Failure) -> Failure | None:
        """The cause, where it is not `own`."""
        heard = Beats()
        began = time.monotonic()
        while own.kind != Kind.KNOWN and time.monotonic() < began + _SEARCH:
            told = [(rank, each) for rank, each in notes.read(0) if each.kind != Kind.CONSEQUENCE]
            if known := [each for _, each in told if each.kind == Kind.KNOWN]:
                return known[0]
            if silent := heard.silent(notes.beats(self._count), _MISSED):
                return Failure(Kind.KNOWN, LOST, f"{self._list(silent)} went away without a word")
            if told and time.monotonic() > began + _HEARSAY:
                rank, unexplained = told[0]
                return None if rank == self._rank else unexplained
            time.sleep(0.1)
        # Nobody knows more than that a peer was lost; who lost it first may know which.
        lost = [each for rank, each in notes.read(0) if rank != self._rank]
        return lost[0] if lost and own.kind == Kind.CONSEQUENCE else None

    def _hush(self, notes: Notes) -> None:
        """End the heartbeat, in a way that nobody takes for a lost pod's."""
        self._ended.set()
        if self._listener is not None:
            self._listener.join(2 * _BEAT)
        notes.store.set(f"beat/{self._rank}", DONE.decode())

    def _linger(self, notes: Notes, seconds: float, without: Collection[int] = ()) -> None:
        """Keep the store for at most so many seconds, until the other pods need it no more."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            beats = notes.beats(self._count)
            if all(beat == DONE for rank, beat in enumerate(beats) if rank not in without):
                return
            time.sleep(0.1)

    def _name(self, rank: int) -> str:
        if self._names:
            return self._names[rank]
        # Nobody has told yet: as the controllers of a PyTorchJob and of a TrainJob name a pod's host.
        host = self._address.partition(".")[0]
        if (job := host.removesuffix("-master-0")) != host:
            return host if rank == 0 else f"{job}-worker-{rank - 1}"
        if (job := host.removesuffix("-node-0-0")) != host:
            return f"{job}-node-0-{rank}"
        return f"the pod with RANK={rank}"

    def _list(self, ranks: list[int]) -> str:
        named = ", ".join(self._name(rank) for rank in ranks[:8])
        return named + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


class _AgentStore(PrefixStore):
    """torchrun's part of the store, on which its agent waits for the others' ranks to end: in C++, deaf to signals."""

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        until = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self.check(keys):
            if time.monotonic() > until:
                raise DistStoreError(f"{keys} did not come in time")
            time.sleep(0.2)


@dataclass
class _Found:
    """What came of asking the other pods."""

    place: int = 0  # of this pod's failure among all
    elsewhere: Failure | None = None  # the cause
    searched: bool = False


class _News:
    """A line now and then, the first one soon."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 5

    @property
    def due(self) -> bool:
        return time.monotonic() > self._next

    def tell(self, line: str) -> None:
        if self.due:
            _say(line)
            self._next = time.monotonic() + _NEWS


def _say(line: str) -> None:
    print(f"torchtally: {line}", file=sys.stderr, flush=True)
