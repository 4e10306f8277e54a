"""Where the time went from the creation of a job's pods to its first step."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torchtally.record.model import Life, Pod

# By the moment of a start with which a phase ends.
_OF_CLUSTER = {"scheduled": "scheduling", "container": "container"}
_OF_POD = {"started": "import", "rendezvous": "rendezvous", "data": "data"}
_LAST = "first step"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds of each phase by its name. Where a pod does not tell some from each other, they are one: `a+b`.

    A phase of the job lasts from when its last pod was through the one before to when the last was through this one:
    they add up to `seconds`, and after the first step, so do those of each pod. Phases that a pod is not through are
    left out.
    """

    created: float  # seconds since 1970: the first pod
    seconds: float
    phases: Mapping[str, float]
    pods: Mapping[str, Mapping[str, float]]  # that ran at the first step

    @property
    def made(self) -> bool:
        """Whether the first step is among the phases."""
        return any(name.endswith(_LAST) for name in self.phases)


def of(pods: Iterable[Pod]) -> Start | None:
    """None where no cluster tells of the pods, or the logs of the first start are gone."""
    lives = [(pod, life) for pod in pods for life in pod.lives]
    steps = [life.first_step for _, life in lives if life.first_step is not None and not life.attempt]
    if not steps and any(life.attempt for _, life in lives):
        return None
    first = min(steps, default=None)
    known = {pod.name: found for pod, _ in lives if (found := _moments(pod, first))}
    created = min((found["created"] or 0.0 for found in known.values()), default=None)
    if created is None:
        return None
    names = _names(known.values())
    ends = {
        pod: list(accumulate([created, *(found[last] or 0.0 for last in names.values())], max))  # clocks can differ
        for pod, found in known.items()
    }
    through = [max(each) for each in zip(*ends.values(), strict=True)]
    return Start(
        created=created,
        seconds=through[-1] - created,
        phases=_lengths(names, through),
        pods={pod: _lengths(names, each) for pod, each in ends.items()},
    )


def _moments(pod: Pod, first: float | None) -> dict[str, float | None] | None:
    """When the pod was created, and when each phase was over; None if it did not run at the first step."""
    until = float("inf") if first is None else first
    lives = [life for life in pod.lives if (_began(life) or 0.0) <= until]
    created = [life.created for life in lives if life.created is not None]
    if not created:
        return None
    found: dict[str, float | None] = {"created": created[-1], "first_step": first}
    for name in _OF_CLUSTER:  # of a pod that restarts within its container, its first start has them
        found[name] = next((moment for life in reversed(lives) if (moment := getattr(life, name)) is not None), None)
    for name in _OF_POD:
        found[name] = getattr(lives[-1], name)
    return found


def _began(life: Life) -> float | None:
    return next((each for each in (life.started, life.container, life.created) if each is not None), None)


def _names(pods: Collection[Mapping[str, float | None]]) -> dict[str, str]:
    """The phases that every pod tells, each with the moment with which it ends."""
    names, together = {}, []
    for moment, phase in {**_OF_CLUSTER, **_OF_POD, "first_step": _LAST}.items():
        together.append(phase)
        if all(found[moment] is not None for found in pods):
            names["+".join(together)] = moment
            together = []
    return names


def _lengths(names: Iterable[str], moments: Sequence[float]) -> dict[str, float]:
    return {name: round(after - before, 3) for name, (before, after) in zip(names, pairwise(moments), strict=True)}
