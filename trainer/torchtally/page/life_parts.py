"""The life of each pod in parts: what it did when, and how it ended."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.record.model import Checkpoint, Life, Pod, Run, Snapshot

SCHEDULES, STARTS = "scheduling", "pulling the image and starting the container"
IMPORTS, WAITS, PREPARES = "importing", "waiting for the other pods", "preparing the first step"
LOADS, TRAINS, SAVES = "loading data", "training", "saving"
SUCCEEDED, FAILED, FOLLOWED = "succeeded", "failed", "ended with another pod"
STOPPED, SILENT = "stopped by a signal", "gone without a word"
_SIGNALLED = 128


@dataclass(frozen=True)
class Part:
    begin: float  # seconds since 1970
    end: float
    state: str


@dataclass(frozen=True, kw_only=True)
class Lived:
    """A pod from one start to its end. `how` is None of a pod that may still run."""

    pod: str
    began: float
    over: float
    parts: Sequence[Part]
    how: str | None
    code: int | None
    cause: str | None


def lived(snapshot: Snapshot, run: Run | None) -> list[Lived]:
    """Each start of each pod of which a moment is known."""
    moments = [life.ended or life.last or 0.0 for pod in snapshot.pods for life in pod.lives]
    now = max(moments, default=0.0)
    saved = run.checkpoints if run else ()
    return [each for pod in snapshot.pods for each in _of_pod(pod, saved if 0 in pod.ranks else (), now)]


def _of_pod(pod: Pod, saved: Sequence[Checkpoint], now: float) -> Iterator[Lived]:
    known = [(life, began) for life in pod.lives if (began := _begin(life)) is not None]
    for number, (life, began) in enumerate(known):
        following = known[number + 1][1] if number + 1 < len(known) else None
        over = max(began, life.ended or following or now)
        parts = [*_parts(life, began, over)]
        for each in saved:
            if each.seconds is not None and began <= each.time <= over:
                parts.append(Part(each.time - each.seconds, each.time, SAVES))
        how = _how(life, gone=following is not None)
        yield Lived(pod=pod.name, began=began, over=over, parts=parts, how=how, code=life.code, cause=life.cause)


def _begin(life: Life) -> float | None:
    moments = (life.created, life.container, life.started, life.first_step, life.last)
    return next((moment for moment in moments if moment is not None), None)


def _parts(life: Life, began: float, over: float) -> Iterator[Part]:
    loads = None if life.data is None else life.data - (life.data_seconds or 0.0)
    trains = over if life.first_step is not None else None
    ends = [
        (SCHEDULES, life.scheduled),
        (STARTS, life.container),
        (IMPORTS, life.started),
        (WAITS, life.rendezvous),
        (PREPARES, loads),
        (LOADS, life.data),
        (PREPARES, life.first_step),
        (TRAINS, trains),
    ]
    at = began
    for state, end in ends:
        if end is not None and end > at:
            yield Part(at, end, state)
            at = end


def _how(life: Life, *, gone: bool) -> str | None:
    if life.code is None:
        return SILENT if gone else None
    if life.code == 0:
        return SUCCEEDED
    if life.kind == "consequence":
        return FOLLOWED
    return STOPPED if life.code > _SIGNALLED else FAILED
