"""The log of a job of two pods in which one was killed, with fixed times: as run_local writes it."""

import bruteforce

from torchtally import events

BEGAN = 1767323040.0  # 2026-01-02 03:04:00 UTC
PODS = ("demo-master-0", "demo-worker-0")
_VERSIONS = {"torchtally": "0.1.0", "torch": "2.14.1", "python": "3.13.1"}
PLAN = {"train": 2}
LINES = bruteforce.run(world=2, plan=PLAN, ranks_per_pod=1, run="3f9c2a7b10de")


def line(seconds: float, pod: str, event: events.Event, attempt: int | None = None) -> str:
    """Of the entry point, or with an attempt of the pod's rank."""
    source = events.Source(pod=pod)
    if attempt is not None:
        source = events.Source(pod=pod, rank=PODS.index(pod), run="3f9c2a7b10de", attempt=attempt)
    return f"[{pod}] {events.line(events.Record(BEGAN + seconds, source, event))}"


def start(seconds: float) -> list[str]:
    """Of both pods, up to their data."""
    found = []
    for rank, pod in enumerate(PODS):
        found.append(
            line(
                seconds,
                pod,
                events.Started(node_rank=rank, min_pods=2, max_pods=2, processes=1, threads=1, **_VERSIONS),
            )
        )
        found.append(line(seconds + 1, pod, events.Rendezvous(pods=2)))
        found.append(line(seconds + 2, pod, events.Data(train=60, test=0, seconds=0.5)))
    return found


def progress(seconds: float, pod: str, attempt: int, epoch: int, step: int, speed: float = 1200.0) -> str:
    event = events.Progress(
        phase="train",
        epoch=epoch,
        epochs=2,
        step=step,
        steps=3,
        samples_per_second=speed,
        loss=0.5 / epoch,
        seconds_left=200.0 / epoch,
    )
    return line(seconds, pod, event, attempt)


def straggler(at: float, attempt: int, slow: str | None, **values: float | str | None) -> str:
    """Of rank 0."""
    told = {"slow_rank": slow and PODS.index(slow), "loses_in": None, "seconds": None, "others": None} | values
    return line(at, MASTER, events.Straggler(slow=slow, **told), attempt)


MASTER, WORKER = PODS
KILLED = [
    *start(0),
    line(4, MASTER, events.Begun(task="t", world=2), 0),
    line(5, MASTER, events.Step(epoch=1), 0),
    "[demo-master-0] a line for people",
    progress(6, MASTER, 0, 1, 2),
    progress(6, WORKER, 0, 1, 2),
    line(7, MASTER, events.Saved(path="/output/a", epoch=1, position=40, seconds=0.25), 0),
    line(9, MASTER, events.Ended(code=203, kind="consequence", cause="demo-worker-0 went away")),
]
RESUMED = [
    *start(20),
    line(
        24,
        MASTER,
        events.Resumed(task="t", world=2, checkpoint="/output/a", epoch=1, position=40, discarded=0),
        1,
    ),
    progress(26, MASTER, 1, 2, 1),
    progress(26, WORKER, 1, 2, 1, speed=600.0),
]


def tallied(lines: list[bruteforce.Line]) -> list[str]:
    own = [{**each, "pod": PODS[0 if each["rank"] == "all" else each["rank"]]} for each in lines]
    return [f"[{each['pod']}] {text}" for each, text in zip(own, bruteforce.text(own).splitlines(), strict=True)]


PROVED = [
    *tallied(LINES),
    *[f"[{MASTER}] {text}" for text in bruteforce.text([bruteforce.last(LINES)]).splitlines()],
    line(30, MASTER, events.Complete(model=None, output=None), 1),
    *(line(31, pod, events.Ended(code=0, kind=None, cause=None)) for pod in PODS),
]
