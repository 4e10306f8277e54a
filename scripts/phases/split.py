"""The time from a job's creation to its first step, cut into phases by what each pod's status, events and log tell."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torchtally import events

from .read import Job, Object, Pod, moment
from .waits import NotYet, why_none

# In the order in which a pod goes through them.
PHASES = (
    "controller",
    "scheduling",
    "sandbox",
    "init",
    "pull",
    "start",
    "restarts",
    "import",
    "rendezvous",
    "data",
    "first step",
)
_NOTHING = float("-inf")  # the end of a phase that a pod does not have: it takes 0 s
_PULLED_IN = re.compile(r" in (\S+)(?: \((\S+) including waiting\))?")
_DURATION = re.compile(r"([0-9.]+)(h|ms|m|µs|ns|s)")  # as Go writes it: 1m2.5s
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Seconds of each phase by its name. Where nothing tells some from each other, they are one: `a+b`.

    A phase of the job lasts from when its last pod was through the one before to when the last was through this one:
    they add up to `seconds`, and so do those of each pod.
    """

    created: float  # seconds since 1970
    seconds: float
    job: dict[str, float]
    pods: dict[str, dict[str, float]]
    left_out: list[str]  # pods that did not run at the first step


def split(job: Job) -> Split:
    """Raises NotYet where the logs have no first step."""
    steps = [step for pod in job.pods for step in _first_steps(pod.log)]
    if not steps:
        raise NotYet(why_none(job))
    first_step = min(steps)
    ends = {pod.name: found for pod in job.pods if (found := _ends(pod, job.container, first_step))}
    if not ends:
        raise NotYet(f"no pod of job {job.name} is left of those that made its first step")
    names = _names(ends.values())
    moments = {}
    for pod, end in ends.items():
        known = [min(end[last] or _NOTHING, first_step) for last in names.values()]
        moments[pod] = list(accumulate([job.created, *known], max))  # whole seconds can lie behind finer ones
    last = [max(each) for each in zip(*moments.values(), strict=True)]
    return Split(
        created=job.created,
        seconds=first_step - job.created,
        job=_lengths(names, last),
        pods={pod: _lengths(names, each) for pod, each in moments.items()},
        left_out=[pod.name for pod in job.pods if pod.name not in ends],
    )


def _lengths(names: Collection[str], moments: Sequence[float]) -> dict[str, float]:
    return dict(zip(names, (after - before for before, after in pairwise(moments)), strict=True))


def _names(ends: Collection[Mapping[str, float | None]]) -> dict[str, str]:
    """The phases that can be told apart in every pod, each with the last of those that it consists of."""
    names, together = {}, []
    for phase in PHASES:
        if phase == "restarts" and all(end[phase] == _NOTHING for end in ends):
            continue
        together.append(phase)
        if all(end[phase] is not None for end in ends):
            names["+".join(together)] = phase
            together = []
    return names


def _first_steps(log: list[str]) -> Iterator[float]:
    """When a run that begins, and is not resumed, has made its first step; or a peer's own word for it."""
    begins = False
    for line in log:
        if record := events.read(line):
            match record.event:
                case events.Begun():
                    begins = True
                case events.Resumed():
                    begins = False
                case events.Step() if begins:
                    yield record.time
        elif line.startswith("{") and '"first_step"' in line:
            try:
                yield float(json.loads(line)["first_step"])
            except (ValueError, KeyError, TypeError):  # somebody else's line
                continue


def _ends(pod: Pod, container: str, first_step: float) -> dict[str, float | None] | None:
    """When each phase was over, as far as it is known; None for a pod that did not run at the first step."""
    if pod.found is None:
        return None
    status = pod.found["status"]
    own = [each for each in pod.events if each["involvedObject"].get("fieldPath") == f"spec.containers{{{container}}}"]
    seen = [_when(event) for event in own if event["reason"] == "Started"]
    main = [each for each in status.get("containerStatuses", []) if each["name"] == container]
    starts = seen + [start for each in main for start in _starts(each)]
    before = [start for start in starts if start <= first_step]
    if not before:
        return None
    all_known = bool(seen) or all(each["restartCount"] <= len(list(_starts(each))) - 1 for each in main)
    restarted = max(before) > min(before) or not all_known
    images = [_when(event) for event in pod.events if event["reason"] in ("Pulling", "Pulled")]
    reported = [each for each in events.in_lines(pod.log) if max(before) <= each.time <= first_step]
    entered = next((each.time for each in reported if isinstance(each.event, events.Started)), None)
    loaded = next(((each.time, each.event.seconds) for each in reported if isinstance(each.event, events.Data)), None)
    return {
        "controller": moment(pod.found["metadata"]["creationTimestamp"]),
        "scheduling": _scheduled(status),
        "sandbox": min(images, default=None),
        "init": _initialized(status),
        "pull": _pulled(own),
        "start": min(before) if all_known else None,
        "restarts": max(before) if restarted else _NOTHING,
        "import": entered,
        "rendezvous": loaded and loaded[0] - loaded[1],
        "data": loaded and loaded[0],
        "first step": first_step,
    }


def _starts(status: Object) -> Iterator[float]:
    """Of a container: the last, and the one before that, where there was one."""
    for state in (status.get("state", {}), status.get("lastState", {})):
        for each in state.values():
            if each.get("startedAt"):
                yield moment(each["startedAt"])


def _scheduled(status: Object) -> float | None:
    conditions = [each for each in status.get("conditions", []) if each["type"] == "PodScheduled"]
    return next((moment(each["lastTransitionTime"]) for each in conditions if each["status"] == "True"), None)


def _initialized(status: Object) -> float:
    """When the last init container had ended; or had started, if it goes on beside the others."""
    ends = [_NOTHING]
    for each in status.get("initContainerStatuses", []):
        if ended := each["state"].get("terminated"):
            ends.append(moment(ended["finishedAt"]))
        elif runs := each["state"].get("running"):
            ends.append(moment(runs["startedAt"]))
    return max(ends)


def _pulled(events: list[Object]) -> float | None:
    """When the container's image had come; its event says more precisely than its moment how long that took."""
    pulled = min((each for each in events if each["reason"] == "Pulled"), key=_when, default=None)
    if pulled is None:
        return None
    if "already present" in pulled["message"]:
        return _NOTHING
    began = min((_when(each) for each in events if each["reason"] == "Pulling"), default=None)
    told = _PULLED_IN.search(pulled["message"])
    if began is None or told is None:
        return _when(pulled)
    return began + sum(float(value) * _UNITS[unit] for value, unit in _DURATION.findall(told[2] or told[1]))


def _when(event: Object) -> float:
    """The first time, of an event that has been counted up."""
    return moment(event.get("firstTimestamp") or event["eventTime"])
