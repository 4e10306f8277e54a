"""The logs of a job's pods as they are written: a thread follows each container that starts."""

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.cluster.job_kinds import ClusterError, ClusterJob
from torchtally.jobs.cluster import Cluster, Pod, restarts, runs, started

MOST = 100  # logs that are followed at a time; the kubelets serve each by a connection
_WAITING = 20000  # lines that wait to be read
_Key = tuple[str, str, int]  # name and uid of a pod, and the number of its container's restarts


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a pod's log, and its time as the container runtime wrote it: these compare as texts."""

    time: str
    pod: str
    text: str


class Follower:
    """Follows the logs of those pods that it is shown."""

    def __init__(self, cluster: Cluster, job: ClusterJob) -> None:
        self._cluster, self._job = cluster, job
        self._threads: dict[_Key, threading.Thread] = {}
        self._last: dict[_Key, str] = {}  # time of the last line, from which an interrupted log continues
        self._lines: queue.Queue[Line] = queue.Queue(_WAITING)
        self.errors: dict[str, str] = {}  # by pod

    def show(self, pods: Mapping[str, Pod]) -> None:
        """Follow the containers of these pods that have started and are not followed yet."""
        container = self._job.container
        for name, pod in pods.items():
            if not started(pod, container):
                continue
            number = restarts(pod, container)
            key = name, str(pod.metadata.uid), number
            known = self._threads.get(key)
            if known and (known.is_alive() or not runs(pod, container)):
                continue
            if sum(thread.is_alive() for thread in self._threads.values()) >= MOST:
                return
            before = number > 0 and (name, key[1], number - 1) not in self._threads
            self._threads[key] = threading.Thread(target=self._follow, args=[key, before], daemon=True)
            self._threads[key].start()

    @property
    def busy(self) -> bool:
        """Whether lines can still come."""
        return not self._lines.empty() or any(thread.is_alive() for thread in self._threads.values())

    def lines(self, seconds: float) -> Iterator[Line]:
        """The lines that have come; waits for the first up to `seconds`."""
        try:
            yield self._lines.get(timeout=seconds)
            while True:
                yield self._lines.get_nowait()
        except queue.Empty:
            return

    def _follow(self, key: _Key, before: bool) -> None:
        pod = key[0]
        try:
            if before:
                self._read(key, previous=True)
            self._read(key, follow=True)
        except (ClusterError, OSError) as error:
            self.errors[pod] = str(error.args[0] if isinstance(error, ClusterError) else error)

    def _read(self, key: _Key, **options: bool) -> None:
        pod, last = key[0], self._last.get(key, "")
        with self._cluster.log(pod, self._job, timestamps=True, **options) as stream:
            for text in stream:
                time, _, line = text.rstrip("\n").partition(" ")
                if time > last:
                    self._lines.put(Line(time, pod, line))
                    self._last[key] = time
