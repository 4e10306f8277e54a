"""Shows a job until it ends: on a terminal in place, and else a line or an object of JSON for each change."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from rich.live import Live

from torchtally.cluster.job_kinds import Unreachable
from torchtally.cluster.logs import read
from torchtally.cluster.wait import Looking
from torchtally.console import show
from torchtally.jobs import gathering, job_status, tables
from torchtally.jobs.cluster import Cluster
from torchtally.jobs.files import Growing, found, parted
from torchtally.jobs.follow import MOST, Follower
from torchtally.jobs.job_outcome import Standing
from torchtally.jobs.job_status import Overview
from torchtally.record.record import Record

_LOOK = 2.0  # seconds between two looks at the cluster
_REDRAW = 0.5
_LINE = 10.0  # seconds between two lines about a job that continues
_REST = 15.0  # seconds for the last lines, after the job's end


class Screen:
    """Where a job is shown while it is watched."""

    def __init__(self, *, as_json: bool) -> None:
        self._json, self._console = as_json, tables.console()
        self._live: Live | None = None
        self._shown: tuple[object, ...] = ()
        self._line = ""
        self._at = 0.0

    @contextmanager
    def open(self) -> Iterator[None]:
        if self._json or not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield

    def show(self, overview: Overview) -> None:
        """Show it now if it has changed, or if some time has passed."""
        now = time.monotonic()
        if self._live:
            if now - self._at >= _REDRAW:
                self._live.update(tables.whole(overview, self._console.encoding, self._console.width), refresh=True)
                self._at = now
            return
        does = [pod.does for pod in overview.pods] if self._json else tables.halted(overview)
        change = overview.state, overview.attempt, overview.epoch, len(overview.restarts), overview.standing, does
        if change != self._shown or now - self._at >= _LINE:
            self._print(overview)
            self._shown, self._at = change, now

    def end(self, overview: Overview) -> None:
        """Show what stays."""
        if self._json:
            self._print(overview)
        else:
            self._console.print(tables.whole(overview, self._console.encoding, self._console.width))

    def _print(self, overview: Overview) -> None:
        if self._json:
            show(json.dumps(msgspec.to_builtins(overview)))
        elif (line := tables.line(overview)) != self._line:
            show(f"{tables.clock(overview.at)} {line}")
            self._line = line


def job(cluster: Cluster, name: str, screen: Screen) -> Standing:
    """Watch a job in the cluster to its end. Raises ClusterError."""
    look = Looking(partial(cluster.job, name))
    found_job = look()
    follower, log = Follower(cluster, found_job), Record()
    pods: gathering.Pods = {}
    warnings: list[str] = []
    looked = ended_at = 0.0
    with screen.open():
        while True:
            if time.monotonic() - looked >= _LOOK:
                try:
                    found_job = look()
                    pods = cluster.pods(found_job)
                    warnings = [] if found_job.ended else cluster.warnings(found_job, pods)
                    if len(pods) > MOST:
                        warnings.append(f"{len(pods)} pods: the logs of {MOST} are followed")
                    follower.show(pods)
                    gathering.tell(log, found_job, pods)
                except Unreachable as error:
                    warnings = [str(error)]
                looked = time.monotonic()
            for line in follower.lines(_REDRAW):
                log.add_line(line.pod, line.text)
            if found_job.ended:
                ended_at = ended_at or time.monotonic()
                if not follower.busy or time.monotonic() - ended_at > _REST:
                    break
            screen.show(gathering.so_far(log, name, found_job, pods, [*warnings, *follower.errors.values()]))
    read(cluster.core, found_job, log)
    last = gathering.judged(log, found_job, pods)
    screen.end(last)
    return last.standing


def logs(path: Path, screen: Screen) -> Standing:
    """Watch logs until their run is complete and its pods have ended. Raises Refused."""
    log, files = Record(), dict[Path, Growing]()
    with screen.open():
        while True:
            for file in found(path):
                growing = files.setdefault(file, Growing(file))
                for text in growing.lines():
                    log.add_line(*parted(file, text))
            if job_status.over(log.snapshot):
                break
            screen.show(gathering.so_far(log, path.name, None, {}, []))
            time.sleep(_REDRAW)
    # As the verifier reads them: a last line without its end counts, and wrapped ones do.
    last = gathering.of_files(path)
    screen.end(last)
    return last.standing
