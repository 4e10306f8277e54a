"""Reports of a pod to programs: a line of JSON for each event, beside the tally lines and the messages to people.

    TORCHTALLY-EVENT {"v":1,"event":"step","time":1767323060.5,"pod":"demo-master-0","rank":0,"run":"3f9c…", …}

`python -m torchtally.events` prints the schema, which is docs/reference/events.schema.json.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

from torchtally import standard_output

PREFIX = "TORCHTALLY-EVENT "
VERSION = 1
_LONGEST = 1000  # characters of a cause: a line is one write to a pipe, and a long one may mix with others'


@dataclass(frozen=True, kw_only=True)
class Source:
    """Who reports."""

    pod: Annotated[str, "name of the pod"]
    rank: Annotated[int | None, "global rank of the process; null in events of the pod's entry point"] = None
    run: Annotated[str | None, "id of the run, as in tally lines; null before the ranks have agreed on it"] = None
    attempt: Annotated[int | None, "number of starts of the run before this one; null if `run` is"] = None
    began: Annotated[int | None, "when rank 0 began the attempt, as in tally lines; null if `run` is"] = None


@dataclass(frozen=True)
class Event:
    """A subclass is a kind of event: its fields are those of the line, and its docstring says when it happens."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The entry point of a pod is ready to meet the other pods."""

    node_rank: Annotated[int | None, "rank of the pod among the pods; null in an elastic job"]
    min_pods: Annotated[int, "fewest pods that train"]
    max_pods: Annotated[int, "most pods that train; the same as `min_pods` unless the job is elastic"]
    processes: Annotated[int, "ranks in this pod"]
    threads: Annotated[int | None, "threads in each rank; null if OMP_NUM_THREADS is not one number"]
    torchtally: Annotated[str, "version of torchtally"]
    torch: Annotated[str, "version of PyTorch"]
    python: Annotated[str, "version of Python"]
    options: Annotated[str | None, "of a built-in task, as far as its weights depend on them; null otherwise"] = None


@dataclass(frozen=True, kw_only=True)
class Rendezvous(Event):
    """All pods have met. Elastic jobs meet by torchrun's own rendezvous and do not report it."""

    pods: Annotated[int, "number of pods"]


@dataclass(frozen=True, kw_only=True)
class Data(Event):
    """The first rank of a pod has loaded its data."""

    train: Annotated[int, "samples to train with"]
    test: Annotated[int, "samples to test with"]
    seconds: Annotated[float, "time that loading took"]


@dataclass(frozen=True, kw_only=True)
class Preflight(Event):
    """The first rank of a pod has compared it with the others, before the first step."""

    node: Annotated[str | None, "name of the pod's node; null if TORCHTALLY_NODE is not set"]
    matrix: Annotated[float, "floating-point operations a second in a matrix product, of the pod's slowest rank"]
    bandwidth: Annotated[float | None, "bytes a second in each direction, with the best of up to three other pods"]
    latency: Annotated[float | None, "seconds of a message and its answer, with the best of those"]
    all_reduce_bandwidth: Annotated[float | None, "bytes a second in an all-reduce of all ranks; null for one rank"]
    all_reduce_latency: Annotated[float | None, "seconds of an all-reduce of one number by all ranks"]
    slow: Annotated[str | None, "what is slow in this pod, as a sentence; null if nothing is"]


@dataclass(frozen=True, kw_only=True)
class Begun(Event):
    """A run begins at its first sample."""

    task: Annotated[str, "name of the task"]
    world: Annotated[int, "number of ranks that train"]


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """A run continues from a checkpoint."""

    task: Annotated[str, "name of the task"]
    world: Annotated[int, "number of ranks that train"]
    checkpoint: Annotated[str | None, "file of the checkpoint; null if the user's program has loaded it"]
    epoch: Annotated[int, "epoch in progress, from 1; one more than the plan has where all epochs are done"]
    position: Annotated[int, "samples of the epoch that all ranks together have consumed"]
    discarded: Annotated[int, "samples known to be lost with restarts: consumed after the checkpoint of each"]


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """The first training step of an attempt is done. Later steps are not reported."""

    epoch: Annotated[int, "epoch in progress, from 1"]


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """The first rank of a pod trains: after a second, and then every 10 s, or as TORCHTALLY_PROGRESS_SECONDS says."""

    phase: Annotated[str, "name of the phase"]
    epoch: Annotated[int, "epoch in progress, from 1"]
    epochs: Annotated[int, "epochs of the phase in the plan"]
    step: Annotated[int, "steps of the epoch that are done"]
    steps: Annotated[int, "steps of the epoch"]
    samples_per_second: Annotated[
        float, "samples of all ranks a second, since this rank's last report or the epoch's begin"
    ]
    loss: Annotated[
        float | None, "mean loss of this rank's last step, or the last that the program has logged; else null"
    ]
    seconds_left: Annotated[float | None, "until the plan is fulfilled, by the speed since this start; null if unknown"]
    timed_steps: Annotated[
        int | None, "steps of this rank since its last report; null if the task does not time them"
    ] = None
    data_wait: Annotated[float | None, "seconds of those steps in which this rank waited for its next batch"] = None
    compute: Annotated[float | None, "seconds of those steps in neither of the other two"] = None
    communication: Annotated[float | None, "seconds of those steps in which DDP waited for other ranks"] = None


@dataclass(frozen=True, kw_only=True)
class Straggler(Event):
    """Two meetings of the ranks have found that a pod is slower than the others, or that none is any more."""

    slow: Annotated[str | None, "name of the pod; null: none is slower any more"]
    slow_rank: Annotated[int | None, "its slowest rank"]
    loses_in: Annotated[str | None, "where it loses time: data_wait, compute, or communication"]
    seconds: Annotated[float | None, "that a step of it takes there; in communication, a message to rank 0 and back"]
    others: Annotated[float | None, "median of the same over the other pods; null if there is none to compare"]


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint is written."""

    path: Annotated[str, "file"]
    epoch: Annotated[int, "epoch in progress, from 1"]
    position: Annotated[int, "samples of the epoch that all ranks together have consumed"]
    seconds: Annotated[float, "time that saving took"]


@dataclass(frozen=True, kw_only=True)
class SaveFailed(Event):
    """A checkpoint could not be written. The training continues."""

    epoch: Annotated[int, "epoch in progress, from 1"]
    position: Annotated[int, "samples of the epoch that all ranks together have consumed"]
    cause: Annotated[str, "message of the error"]


@dataclass(frozen=True, kw_only=True)
class Proved(Event):
    """The tallies of a phase were compared with its contract."""

    phase: Annotated[str, "name of the phase, for example train or test"]
    epoch: Annotated[int, "epoch, from 1"]
    holds: Annotated[bool, "whether every rank consumed exactly the samples that the contract names"]


@dataclass(frozen=True, kw_only=True)
class Epoch(Event):
    """An epoch is trained, proved, and evaluated."""

    epoch: Annotated[int, "epoch, from 1"]
    loss: Annotated[float | None, "mean over the training samples; null if not finite"]
    test_loss: Annotated[float | None, "mean over the test samples; null if not finite"]
    test_accuracy: Annotated[float, "share of the test samples that are classified correctly, from 0 to 1"]
    tested: Annotated[int, "number of test samples"]
    samples_per_second: Annotated[float, "training samples of all ranks a second"]


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """All ranks have stopped after the same step, because a rank received a signal."""

    signal: Annotated[int, "number of the signal"]
    saved: Annotated[bool, "whether a checkpoint has all steps"]
    epoch: Annotated[int, "epoch in progress, from 1"]
    position: Annotated[int, "samples of the epoch that all ranks together have consumed"]


@dataclass(frozen=True, kw_only=True)
class WriteFailed(Event):
    """The results of a run whose plan is fulfilled could not be written. The run retries for some minutes."""

    output: Annotated[str, "folder of the results"]
    cause: Annotated[str, "message of the error"]


@dataclass(frozen=True, kw_only=True)
class Complete(Event):
    """Nothing is left to do: the plan is fulfilled, and its results are written."""

    model: Annotated[str | None, "`sha256:` and the hash of the model's file; null if there is none"]
    output: Annotated[str | None, "folder of the results; null if there is none"]


@dataclass(frozen=True, kw_only=True)
class Stuck(Event):
    """The ranks of a pod take no batch, or use no CPU. The pod's entry point has written their stacks."""

    seconds: Annotated[
        float | None,
        "time without a batch, or a CPU; null: the ranks are killed, as another pod has failed",
    ]
    stands: Annotated[str, "where the ranks stand, of all pods that have told it"]
    stacks: Annotated[str | None, "file with the stacks; null if it could not be written"]


@dataclass(frozen=True, kw_only=True)
class Continued(Event):
    """The ranks of a pod that has reported `stuck` go on."""


@dataclass(frozen=True, kw_only=True)
class Observed(Event):
    """A pass of a DataLoader has ended in a rank of a program without an account. The pod's entry point reports it."""

    of_rank: Annotated[int, "global rank"]
    loader: Annotated[str, "where the program iterates, and the type of the dataset"]
    phase: Annotated[str, "train if an optimizer has stepped after a batch of it, else evaluate"]
    number: Annotated[int, "number of the pass, from 1, among those of this loader in its process"]
    samples: Annotated[int, "samples that were handed out"]
    batches: Annotated[int, "batches that were handed out"]
    whole: Annotated[bool, "whether it reached its end; else the program left it"]


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The entry point of a pod ends. A pod that is killed does not report it."""

    code: Annotated[int, "exit code"]
    kind: Annotated[str | None, "known, unexplained (an exit code alone), consequence (of another pod's end), or null"]
    cause: Annotated[str | None, "what ended the pod, at most 1000 characters; null after success"]


KINDS: dict[str, type[Event]] = {
    "started": Started,
    "rendezvous": Rendezvous,
    "data": Data,
    "preflight": Preflight,
    "begun": Begun,
    "resumed": Resumed,
    "step": Step,
    "progress": Progress,
    "straggler": Straggler,
    "saved": Saved,
    "save_failed": SaveFailed,
    "proved": Proved,
    "epoch": Epoch,
    "stopped": Stopped,
    "write_failed": WriteFailed,
    "complete": Complete,
    "stuck": Stuck,
    "continued": Continued,
    "observed": Observed,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
# Fields with a default, which were added later: events of an earlier release lack them.
_ADDED = {kind: {each.name for each in fields(kind) if each.default is not MISSING} for kind in KINDS.values()}
_HINTS: dict[Any, dict[str, Any]] = {kind: get_type_hints(kind) for kind in (Source, *KINDS.values())}
_DATES = 250_000_000_000  # seconds after 1970 that are dates in any zone, as Python has them
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(frozen=True)
class Record:
    """An event, and who reported it when."""

    time: float  # seconds since 1970, by the pod's clock
    source: Source
    event: Event


def emit(event: Event, source: Source) -> None:
    """Print `event`; raises nothing. A rank's goes to stdout, as its tally lines do, an entry point's to stderr.

    The stdout of an entry point belongs to the command that it runs.
    """
    text = line(Record(round(time.time(), 3), source, event))
    if source.rank is not None:
        standard_output.write(text)
        return
    with contextlib.suppress(OSError, ValueError):  # a full disk, a pipe that nobody reads, a stream that is closed
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def line(record: Record) -> str:
    """`record` as it is printed."""
    values = {"v": VERSION, "event": _NAMES[type(record.event)], "time": record.time}
    fields = asdict(record.source) | asdict(record.event)
    values |= {name: _plain(name, value) for name, value in fields.items()}
    return PREFIX + json.dumps(values, separators=(",", ":"))


def read(line: str) -> Record | None:
    """The event in a line of a log, whatever stands before it; None where there is none that this version knows."""
    _, prefix, text = line.partition(PREFIX)
    if not prefix:
        return None
    try:
        values = json.loads(text)
        if _checked(values, "v", int) != VERSION:
            return None
        kind = KINDS[values["event"]]
        source = Source(**_own(Source, values, set()))
        return Record(_checked(values, "time", float), source, kind(**_own(kind, values, _ADDED[kind])))
    except (ValueError, LookupError, TypeError, RecursionError):  # cut off, mixed up with other output, or of others
        return None


def in_lines(lines: Iterable[str]) -> Iterator[Record]:
    """The events in the lines of a log."""
    return (record for line in lines if (record := read(line)))


def schema() -> dict[str, Any]:
    """The JSON schema of an event, without PREFIX."""
    common = {
        "v": {"const": VERSION, "description": "version of the format"},
        "event": {"enum": list(KINDS), "description": "kind of the event"},
        "time": {"type": "number", "description": "seconds since 1970, by the pod's clock"},
        **_properties(Source),
    }
    kinds = []
    for name, kind in KINDS.items():
        own = _properties(kind)
        kinds.append(
            {
                "description": " ".join((kind.__doc__ or "").split()),
                "properties": {"event": {"const": name}, **own},
                "required": [each for each in own if each not in _ADDED[kind]],
            }
        )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a torchtally pod",
        "type": "object",
        "properties": common,
        "required": list(common),
        "oneOf": kinds,
    }


def _plain(name: str, value: Any) -> Any:
    """As JSON has it, which knows no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value[:_LONGEST] if name == "cause" and value else value


def _own(kind: type[Source | Event], values: Mapping[str, Any], added: set[str]) -> dict[str, Any]:
    names = {name: hint for name, hint in _HINTS[kind].items() if name in values or name not in added}
    return {name: _checked(values, name, hint) for name, hint in names.items()}


def _checked(values: Mapping[str, Any], name: str, hint: Any) -> Any:
    """The field `name`, of which `hint` is the type; another type raises TypeError."""
    value, allowed = values[name], get_args(hint) or (hint,)
    if type(value) not in allowed and not (type(value) is int and float in allowed):
        raise TypeError(f"{name} is {value!r}")
    if isinstance(value, int | float) and not abs(value) < (_DATES if name == "time" else 1 << 63):
        raise ValueError(f"{name} is {value!r}")
    return value


def _properties(kind: type[Source | Event]) -> dict[str, Any]:
    properties = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        types = [_TYPES[each] for each in get_args(hint.__origin__) or (hint.__origin__,)]
        properties[name] = {"type": types[0] if len(types) == 1 else types, "description": hint.__metadata__[0]}
    return properties


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
