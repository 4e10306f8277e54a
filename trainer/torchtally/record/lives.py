"""The starts of one pod, out of the events that it reports and of what its cluster says."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from torchtally import events
from torchtally.record.model import Life, Pod, Restart

_WHOLE_SECONDS = 2.0  # by which the cluster's moments can lie behind those of a log
_AHEAD = 60.0  # seconds by which a clock that is wrong differs at least
_MOMENTS = ("started", "rendezvous", "data", "first_step", "last", "stuck", "ended")  # of a pod's own clock


class Lives:
    """What is known of a pod of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lives: list[Life] = []
        self._of_cluster: dict[float, Life] = {}  # by their beginning
        self._processes: int | None = None
        self._versions: Mapping[str, str] = {}
        self._options: str | None = None
        self._stays = False  # from the first attempt on: the job is not elastic
        self._reporting: set[int] = set()  # ranks of events
        self._tallied: set[int] = set()  # ranks of tally lines, which may be numbered otherwise

    def add(self, record: events.Record) -> None:
        """An event of the pod's entry point or of one of its ranks."""
        time, source, event = record.time, record.source, record.event
        if source.rank is not None:
            self._reporting.add(source.rank)
        match event:
            case events.Started() if any(life.started == time for life in self._lives):
                pass  # its log is read again
            case events.Started():
                self._lives.append(Life(started=time, last=time))
                self._processes = event.processes
                self._versions = {name: getattr(event, name) for name in ("torchtally", "torch", "python")}
                self._options = event.options
                self._stays = event.min_pods == event.max_pods
            case events.Rendezvous():
                self._note(time, rendezvous=time)
            case events.Data():
                self._note(time, data=time, data_seconds=event.seconds)
            case events.Preflight():
                self._note(time, slow=event.slow)
            case events.Stuck():
                self._note(time, anew=True, stuck=time, stands=event.stands)
            case events.Ended():
                self._note(time, ended=time, code=event.code, kind=event.kind, cause=event.cause)
            case events.Step() | events.Progress():
                self._of_run(source.run, source.attempt, time, first_step=time)
            case _:
                self._of_run(source.run, source.attempt, time)

    def tallied(self, rank: int) -> None:
        """A tally line of one of its ranks."""
        self._tallied.add(rank)

    def tell(self, part: Life) -> None:
        """What the cluster says of one start; said again, it replaces what was said before."""
        began = part.container or part.created
        assert began is not None
        if part.container and part.created:  # the same start, before its container had started
            self._of_cluster.pop(part.created, None)
        self._of_cluster[began] = part

    @property
    def ahead(self) -> float:
        """Seconds by which the pod's clock is ahead of the cluster's: they differ if its starts lie in no container."""
        starts = [life.started for life in self._lives if life.started is not None]
        containers = sorted(
            (part.container, part.ended or float("inf")) for part in self._of_cluster.values() if part.container
        )
        if not starts or not containers:
            return 0.0

        def empty(ahead: float) -> int:
            """How many containers have no start."""
            begins = [began - _WHOLE_SECONDS + ahead for began, _ in containers] + [float("inf")]
            ends = [ended + _WHOLE_SECONDS + ahead for _, ended in containers]
            spans = zip(begins, map(min, ends, begins[1:]), strict=False)
            return sum(not any(begin <= start < end for start in starts) for begin, end in spans)

        last, (began, _) = starts[-1], containers[-1]
        possible = [last - began for began, _ in containers[-2:]] + [start - began for start in starts[-2:]]
        return min([0.0, *(each for each in possible if abs(each) > _AHEAD)], key=lambda each: (empty(each), abs(each)))

    @property
    def attempts(self) -> Iterator[tuple[str, int]]:
        """Those of each run of which this pod has told."""
        return ((life.run, life.attempt) for life in self._lives if life.run is not None and life.attempt is not None)

    def pod(self, first_attempts: Mapping[str, int]) -> Pod:
        """The whole. `first_attempts`: by run, the first one of which any pod has told."""
        return Pod(
            name=self.name,
            ranks=tuple(sorted(self._tallied or self._reporting)),
            processes=self._processes,
            versions=self._versions,
            options=self._options,
            lives=tuple(self._whole(first_attempts)) or (Life(),),
        )

    def restarts(self, first_attempts: Mapping[str, int]) -> Iterator[Restart]:
        for life, following in pairwise(self._whole(first_attempts)):
            moments = (life.ended, life.last, following.started, following.container, following.created)
            yield Restart(
                time=next((each for each in moments if each is not None), 0.0),
                pod=self.name,
                run=life.run,
                attempt=life.attempt,
                code=life.code,
                kind=life.kind,
                cause=life.cause,
            )

    def _whole(self, first_attempts: Mapping[str, int]) -> list[Life]:
        """The lives, before them those whose logs are gone with a pod of this name: of the attempts before them."""
        lives = self._joined()
        for known, life in enumerate(lives):
            if self._stays and life.run is not None and life.attempt is not None:
                first = first_attempts.get(life.run, life.attempt)
                return [*(Life(run=life.run, attempt=each) for each in range(first, life.attempt - known)), *lives]
        return lives

    def _of_run(self, run: str | None, attempt: int | None, time: float, **moments: Any) -> None:
        """A rank's event. Without an entry point, a higher attempt of the run is all that tells a start."""
        known = self._lives[-1] if self._lives else None
        if known and known.started is None and known.run == run and (attempt or 0) > (known.attempt or 0):
            self._lives.append(Life(run=run, attempt=attempt))
        self._note(time, run=run, attempt=attempt, **moments)

    def _note(self, time: float, *, anew: bool = False, **values: Any) -> None:
        """Add what is not known yet of the start in which `time` lies, or what replaces what was known."""
        if not self._lives:
            self._lives.append(Life())
        within = [at for at, life in enumerate(self._lives) if life.started is None or life.started <= time]
        at = within[-1] if within else 0
        life = self._lives[at]
        new = {name: value for name, value in values.items() if anew or getattr(life, name) is None}
        self._lives[at] = replace(life, **new, last=max(time, life.last or time))

    def _joined(self) -> list[Life]:
        """The lives, by the cluster's clock, with its parts of each, and those that only the cluster knows."""
        joined = [_earlier(life, ahead) for life in self._lives] if (ahead := self.ahead) else list(self._lives)
        for began, part in sorted(self._of_cluster.items()):
            following = min((other for other in self._of_cluster if other > began), default=float("inf"))
            within = [
                at
                for at, life in enumerate(joined)
                if (moment := life.started or life.last) and began - _WHOLE_SECONDS <= moment < following
            ]
            if not within:
                joined.append(part)
                continue
            if len(within) > 1:  # the pod has started again in its container, whose end is that of the last start
                end = Life(ended=part.ended, code=part.code, cause=part.cause)
                joined[within[-1]] = _filled(joined[within[-1]], end)
                part = replace(part, ended=None, code=None, cause=None)
            joined[within[0]] = _filled(joined[within[0]], part)
        return sorted(joined, key=_begin) if self._of_cluster else joined


def _begin(life: Life) -> float:
    return next((each for each in (life.container, life.started, life.created, life.last) if each is not None), 0.0)


def _earlier(life: Life, seconds: float) -> Life:
    moments = {name: moment - seconds for name in _MOMENTS if (moment := getattr(life, name)) is not None}
    return replace(life, **moments)


def _filled(life: Life, part: Life) -> Life:
    """Where both tell of its end, the pod's own word counts."""
    known = {each.name: getattr(life, each.name) for each in fields(Life)}
    known = {name: value for name, value in known.items() if value is not None}
    own_end = {"kind": life.kind, "cause": life.cause} if life.ended is not None else {}
    return replace(part, **known | own_end)
