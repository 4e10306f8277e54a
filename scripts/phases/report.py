"""The phases for people (a table and what its columns are) and for programs (JSON)."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from .read import Job
from .split import Split

JSON_HELP = """\
--json prints one object: "job", "namespace", "created" (when, ISO 8601), "seconds" (from there to the first step),
"phases" (seconds by name, of the job) and "pods" (the same of each pod, by its name). A name of several phases, joined
by +, is one that nothing tells apart; "left_out" has the pods that did not run at the first step."""
_MEANING = {
    "controller": "until the pod is made, its turn in a queue included",
    "scheduling": "until it has a node, its volumes' provisioning included",
    "sandbox": "its volumes mounted and its network made",
    "init": "its init containers, the pull of their images included: of workers, that of the training's",
    "pull": "the pull of the training's image, 0 where the node has it by then",
    "start": "until the container has started",
    "restarts": "until the container's start that made the first step",
    "import": "until the entry point's first line: Python, PyTorch",
    "rendezvous": "until the pods have met",
    "data": "until the data is loaded",
    "first step": "model, process group, first step of all ranks together",
}


def as_json(job: Job, found: Split) -> str:
    return json.dumps(
        {
            "job": job.name,
            "namespace": job.namespace,
            "created": _iso(found.created),
            "seconds": round(found.seconds, 3),
            "phases": _rounded(found.job),
            "pods": {pod: _rounded(phases) for pod, phases in found.pods.items()},
            "left_out": found.left_out,
        },
        indent=2,
    )


def as_text(job: Job, found: Split) -> str:
    return "\n".join(_lines(job, found))


def _lines(job: Job, found: Split) -> Iterator[str]:
    yield f"job {job.name} made its first step {found.seconds:.1f} s after {_iso(found.created)}, when it was created"
    yield ""
    rows = [[pod, *_cells(phases)] for pod, phases in found.pods.items()]
    yield from _aligned([["seconds", *found.job, "together"], *rows, ["all", *_cells(found.job)]])
    yield ""
    width = max(map(len, _MEANING))
    for phase in (phase for name in found.job for phase in name.split("+")):
        yield f"{phase.ljust(width)}  {_MEANING[phase]}"
    yield ""
    yield "all: from the last pod that was through a phase to the last that was through the next."
    yield "± 1 s: the cluster's own moments are whole seconds, and only those of logs are finer."
    if any("+" in name for name in found.job):
        yield "+ joins phases that no event and no line of the logs tells apart."
    for pod in found.left_out:
        yield f"note: {pod} is left out: it did not run at the first step"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells])


def _cells(phases: dict[str, float]) -> list[str]:
    return [f"{seconds:.1f}" for seconds in (*phases.values(), sum(phases.values()))]


def _rounded(phases: dict[str, float]) -> dict[str, float]:
    return {phase: round(seconds, 3) for phase, seconds in phases.items()}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
