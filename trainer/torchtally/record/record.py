"""What happened in a job, out of the lines of its pods' logs as they come."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TextIO

from torchtally import events
from torchtally.observed.judge import Observation, judge
from torchtally.proof.line import TallyLine
from torchtally.record.lives import Lives
from torchtally.record.model import Life, Run, Snapshot
from torchtally.record.runs import RunLines
from torchtally.verifier.line_groups import Lines
from torchtally.verifier.log import Log


@dataclass
class Record(Log):
    """The verifier's log, with the events of each pod and run beside it. Each line is read once.

    The order of lines matters only within a pod's log.
    """

    _pods: dict[str, Lives] = field(default_factory=dict)
    _runs: dict[str, RunLines] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # of logs: the names by which their pods report
    _pod: str = ""  # whose log is read
    _observation: Observation | None = None
    _judged: int = 0  # observed lines that the observation has

    def read(self, source: str, stream: TextIO) -> None:
        """Add the lines of a stream, whose name is for complaints; that of a pod's log is `pod NAME`."""
        self._pod = source.removeprefix("pod ")
        super().read(source, stream)

    def add_line(self, pod: str, text: str) -> None:
        """Add a line of the log of `pod`: that of a program that wrote it, not of a container runtime."""
        self._pod = pod
        self.add(text, f"pod {pod}")

    def add(self, text: str, where: str) -> None:
        """Add a line of the log that is read."""
        self.add_event(self._pod, text)
        super().add(text, where)

    def add_event(self, pod: str, text: str) -> None:
        """Add the event in a line, if there is one, and nothing that the verifier judges."""
        record = events.read(text)
        if record is None:
            return
        self._reporting(pod, record.source.pod).add(record)
        if (run := record.source.run) is not None:
            self._runs.setdefault(run, RunLines(run)).add(record)

    def add_tally(self, line: TallyLine, where: str) -> None:
        """Add a tally line."""
        super().add_tally(line, where)
        if line.rank != "all":
            self._reporting(self._pod, line.pod).tallied(line.rank)

    def add_life(self, pod: str, life: Life) -> None:
        """Add what the cluster says of one start of a pod, by its log's name. It knows `container` or `created`."""
        self._lives(self._names.get(pod, pod)).tell(life)

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now."""
        if self._judged != self.observed.count:
            self._observation, self._judged = judge(self.observed), self.observed.count
            for pod, rank in {(each.process.pod, each.rank) for each in self.observed.handed.values()}:
                self._lives(pod).tallied(rank)
        first_attempts: dict[str, int] = {}
        for run, attempt in chain.from_iterable(lives.attempts for lives in self._pods.values()):
            first_attempts[run] = min(attempt, first_attempts.get(run, attempt))
        pods = [lives.pod(first_attempts) for lives in self._pods.values()]
        pods.sort(key=lambda pod: (pod.ranks[:1] or (float("inf"),), pod.name))
        restarts = sorted(
            (restart for lives in self._pods.values() for restart in lives.restarts(first_attempts)),
            key=lambda restart: (restart.time, restart.pod),
        )
        return Snapshot(
            runs=tuple(self._found_runs()), pods=tuple(pods), restarts=tuple(restarts), observation=self._observation
        )

    def _found_runs(self) -> list[Run]:
        """By the time of their beginning."""
        groups: dict[str, list[Lines]] = defaultdict(list)
        for (run, *_), same in self.blocks.items():
            groups[run] += same
        found = []
        for name in dict.fromkeys([*self._runs, *groups, *self.lasts]):
            events_of = self._runs.get(name) or RunLines(name)
            found.append(events_of.run(self._ended(events_of), groups[name], self.lasts.get(name, [])))
        return sorted(found, key=_begin)

    def _ended(self, lines: RunLines) -> float:
        """When a start of rank 0's pod has ended last, by its own clock."""
        if lines.pod not in self._pods:
            return 0.0
        pod = self._pods[lines.pod]
        lives = pod.pod({}).lives
        ends = [life.ended for life in lives if life.ended is not None]
        # The start of the next one, of which a kill leaves no other trace.
        ends += [life.started for life in lives[1:] if life.started is not None]
        return max(ends, default=0.0) + pod.ahead

    def _reporting(self, log: str, pod: str) -> Lives:
        self._names[log] = pod
        return self._lives(pod)

    def _lives(self, pod: str) -> Lives:
        return self._pods.setdefault(pod, Lives(pod))


def _begin(run: Run) -> float:
    """When its first attempt began, as far as that is known."""
    return min((each.first for each in run.attempts if each.first is not None), default=float("inf"))
