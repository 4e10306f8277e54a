"""Why a job has made no first step yet, in one sentence."""

from torchtally import events

from .read import Job, Object, Pod

_WAITS = ("PodInitializing", "ContainerCreating")  # which say nothing more than Pending does


class NotYet(Exception):
    """There is no first step to tell of; the text says why."""


def why_none(job: Job) -> str:
    for pod in job.pods:
        for record in events.in_lines(pod.log):
            if isinstance(record.event, events.Resumed):
                resumed = f"{pod.name} has resumed run {record.source.run}"
                return f"job {job.name} has made its first step in logs that are gone: {resumed}"
    waits = [why for pod in job.pods if (why := _why(pod))]
    if waits:
        more = f" ({len(waits)} of {len(job.pods)} pods do not run)" if len(waits) > 1 else ""
        return f"job {job.name} ({job.state}) has not made its first step: {waits[0]}{more}"
    lines = "the event “step”, or a line of JSON with first_step"
    return f"job {job.name} ({job.state}) has not logged its first step ({lines})"


def _why(pod: Pod) -> str | None:
    """What keeps the pod from running, None if nothing does."""
    if pod.found is None:
        return f"there is no pod {pod.name}"
    status = pod.found["status"]
    if status["phase"] != "Pending":
        return None
    told = [_said(each) for each in status.get("conditions", []) if each["type"] == "PodScheduled"]
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        state = each["state"]
        if "running" in state:
            told.append(f"{each['name']} runs")
        elif state.get("waiting", {}).get("reason") not in (None, *_WAITS):
            told.append(f"{each['name']}: {_said(state['waiting'])}")
    reasons = [each for each in told if each]
    return f"pod {pod.name} is Pending" + (f" ({'; '.join(reasons)})" if reasons else "")


def _said(of: Object) -> str:
    """Nothing of a condition that holds."""
    if of.get("status") == "True":
        return ""
    return ": ".join(each for each in (of.get("reason"), of.get("message")) if each)
