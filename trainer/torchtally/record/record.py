"""What happened in a job, out of the lines of its pods' logs as they come."""

import json
from collections import Counter

from torchtally import events
from torchtally.observed.judge import Observation, judge
from torchtally.observed.lines import Lines
from torchtally.proof import line as tally_line
from torchtally.proof import run_summary
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.record.lives import Lives
from torchtally.record.model import Life, Run, Snapshot
from torchtally.record.runs import RunLines

_START = tally_line.PREFIX + "{"
_DECODER = json.JSONDecoder()


class Record:
    """Takes each line once. Its memory grows with pods, epochs, and restarts, and not with the lines.

    The order of lines matters only within a pod's log.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Lives] = {}
        self._runs: dict[str, RunLines] = {}
        self._names: dict[str, str] = {}  # of logs: the names by which their pods report
        self._unread: Counter[str] = Counter()
        self._observed = Lines()  # of each loader and rank, the observer writes a bounded number
        self._observation: Observation | None = None
        self._judged = True  # whether the observation has all lines

    def add(self, pod: str, line: str) -> None:
        """Add a line of the log of `pod`: that of a program that wrote it, not of a container runtime."""
        if "TORCHTALLY" not in line:
            return
        if self._observed.add(line, f"pod {pod}"):
            self._judged = False
        elif events.PREFIX in line:
            self._event(pod, line)
        elif (at := line.find(_START)) >= 0:
            self._tally(pod, line, at + len(tally_line.PREFIX))

    def tell(self, pod: str, life: Life) -> None:
        """Add what the cluster says of one start of a pod, by its log's name. It knows `container` or `created`."""
        self._lives(self._names.get(pod, pod)).tell(life)

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now."""
        if not self._judged:
            self._observation, self._judged = judge(self._observed), True
            for pod, rank in {(each.process.pod, each.rank) for each in self._observed.handed.values()}:
                self._lives(pod).tallied(rank)
        pods = [lives.pod for lives in self._pods.values()]
        pods.sort(key=lambda pod: (pod.ranks[:1] or (float("inf"),), pod.name))
        restarts = sorted(
            (restart for lives in self._pods.values() for restart in lives.restarts),
            key=lambda restart: (restart.time, restart.pod),
        )
        runs = sorted(self._runs.values(), key=lambda run: run.begin)
        return Snapshot(
            runs=tuple(map(self._run, runs)),
            pods=tuple(pods),
            restarts=tuple(restarts),
            unread=self._unread.total(),
            observation=self._observation,
        )

    def _run(self, lines: RunLines) -> Run:
        lives = self._pods[lines.pod].pod.lives if lines.pod in self._pods else ()
        ends = [life.ended for life in lives if life.ended is not None]
        # The start of the next one, of which a kill leaves no other trace.
        ends += [life.started for life in lives[1:] if life.started is not None]
        return lines.run(max(ends, default=0.0))

    def _event(self, pod: str, line: str) -> None:
        record = events.read(line)
        if record is None:
            self._unread[pod] += 1
            return
        self._reporting(pod, record.source.pod).add(record)
        if record.source.run is not None:
            self._of(record.source.run).add(record)

    def _tally(self, pod: str, line: str, at: int) -> None:
        try:
            values, _ = _DECODER.raw_decode(line, at)
            tally_line.check_version(values)
            if run_summary.is_summary(values):
                last = RunSummary.parse(values)
                self._of(last.run).end(last)
                return
            found = TallyLine.parse(values)
        except (ValueError, RecursionError):
            self._unread[pod] += 1
            return
        if found.rank != "all":
            self._reporting(pod, found.pod).tallied(found.rank)
        self._of(found.run).tally(found)

    def _of(self, run: str) -> RunLines:
        if run not in self._runs:
            self._runs[run] = RunLines(run)
        return self._runs[run]

    def _reporting(self, log: str, pod: str) -> Lives:
        self._names[log] = pod
        return self._lives(pod)

    def _lives(self, pod: str) -> Lives:
        if pod not in self._pods:
            self._pods[pod] = Lives(pod)
        return self._pods[pod]
