"""Reports of a pod to programs: a line of JSON for each event, beside the tally lines and the messages to people.

    TORCHTALLY-EVENT {"v":1,"event":"step","time":1767323060.5,"pod":"demo-master-0","rank":0,"run":"3f9c…", …}

docs/reference/events.schema.json is the schema, which `make docs` writes.
"""

import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from torchtally import standard_output

PREFIX = "TORCHTALLY-EVENT "
VERSION = 1
_LONGEST = 1000  # characters of a cause: a line is one write to a pipe, and a long one may mix with others'
_DATES = 250_000_000_000  # seconds after 1970 that are dates in any zone, as Python has them

Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def says(text: str) -> Meta:
    """What a field says, for the schema."""
    return Meta(description=text)


def _kind(name: str) -> str:
    """The kind of event that a class is: `SaveFailed` is `save_failed`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Source(Struct, frozen=True, kw_only=True):
    """Who reports."""

    pod: Annotated[str, says("name of the pod")]
    rank: Annotated[Whole | None, says("global rank of the process; null in events of the pod's entry point")] = None
    run: Annotated[str | None, says("id of the run, as in tally lines; null before the ranks have agreed on it")] = None
    attempt: Annotated[Whole | None, says("number of starts of the run before this one; null if `run` is")] = None
    began: Annotated[Whole | None, says("when rank 0 began the attempt, as in tally lines; null if `run` is")] = None


class Event(Struct, frozen=True, kw_only=True, tag_field="event", tag=_kind):
    """A subclass is a kind of event: its fields are those of the line, and its docstring says when it happens."""


class Started(Event, frozen=True, kw_only=True):
    """The entry point of a pod is ready to meet the other pods."""

    node_rank: Annotated[Whole | None, says("rank of the pod among the pods; null in an elastic job")]
    min_pods: Annotated[Whole, says("fewest pods that train")]
    max_pods: Annotated[Whole, says("most pods that train; the same as `min_pods` unless the job is elastic")]
    processes: Annotated[Whole, says("ranks in this pod")]
    threads: Annotated[Whole | None, says("threads in each rank; null if OMP_NUM_THREADS is not one number")]
    torchtally: Annotated[str, says("version of torchtally")]
    torch: Annotated[str, says("version of PyTorch")]
    python: Annotated[str, says("version of Python")]
    options: Annotated[str | None, says("of a built-in task, as far as its weights depend on them; null otherwise")] = (
        None
    )


class Rendezvous(Event, frozen=True, kw_only=True):
    """All pods have met. Elastic jobs meet by torchrun's own rendezvous and do not report it."""

    pods: Annotated[Whole, says("number of pods")]


class Data(Event, frozen=True, kw_only=True):
    """The first rank of a pod has loaded its data."""

    train: Annotated[Whole, says("samples to train with")]
    test: Annotated[Whole, says("samples to test with")]
    seconds: Annotated[float, says("time that loading took")]


class Preflight(Event, frozen=True, kw_only=True):
    """The first rank of a pod has compared it with the others, before the first step."""

    node: Annotated[str | None, says("name of the pod's node; null if TORCHTALLY_NODE is not set")]
    matrix: Annotated[float, says("floating-point operations a second in a matrix product, of the pod's slowest rank")]
    bandwidth: Annotated[
        float | None, says("bytes a second in each direction, with the best of up to three other pods")
    ]
    latency: Annotated[float | None, says("seconds of a message and its answer, with the best of those")]
    all_reduce_bandwidth: Annotated[
        float | None, says("bytes a second in an all-reduce of all ranks; null for one rank")
    ]
    all_reduce_latency: Annotated[float | None, says("seconds of an all-reduce of one number by all ranks")]
    slow: Annotated[str | None, says("what is slow in this pod, as a sentence; null if nothing is")]


class Begun(Event, frozen=True, kw_only=True):
    """A run begins at its first sample."""

    task: Annotated[str, says("name of the task")]
    world: Annotated[Whole, says("number of ranks that train")]


class Resumed(Event, frozen=True, kw_only=True):
    """A run continues from a checkpoint."""

    task: Annotated[str, says("name of the task")]
    world: Annotated[Whole, says("number of ranks that train")]
    checkpoint: Annotated[str | None, says("file of the checkpoint; null if the user's program has loaded it")]
    epoch: Annotated[Whole, says("epoch in progress, from 1; one more than the plan has where all epochs are done")]
    position: Annotated[Whole, says("samples of the epoch that all ranks together have consumed")]
    discarded: Annotated[Whole, says("samples known to be lost with restarts: consumed after the checkpoint of each")]


class Step(Event, frozen=True, kw_only=True):
    """The first training step of an attempt is done. Later steps are not reported."""

    epoch: Annotated[Whole, says("epoch in progress, from 1")]


class Progress(Event, frozen=True, kw_only=True):
    """The first rank of a pod trains: after a second, and then every 10 s, or as TORCHTALLY_PROGRESS_SECONDS says."""

    phase: Annotated[str, says("name of the phase")]
    epoch: Annotated[Whole, says("epoch in progress, from 1")]
    epochs: Annotated[Whole, says("epochs of the phase in the plan")]
    step: Annotated[Whole, says("steps of the epoch that are done")]
    steps: Annotated[Whole, says("steps of the epoch")]
    samples_per_second: Annotated[
        float, says("samples of all ranks a second, since this rank's last report or the epoch's begin")
    ]
    loss: Annotated[
        float | None, says("mean loss of this rank's last step, or the last that the program has logged; else null")
    ]
    seconds_left: Annotated[
        float | None, says("until the plan is fulfilled, by the speed since this start; null if unknown")
    ]
    timed_steps: Annotated[
        Whole | None, says("steps of this rank since its last report; null if the task does not time them")
    ] = None
    data_wait: Annotated[float | None, says("seconds of those steps in which this rank waited for its next batch")] = (
        None
    )
    compute: Annotated[float | None, says("seconds of those steps in neither of the other two")] = None
    communication: Annotated[float | None, says("seconds of those steps in which DDP waited for other ranks")] = None


class Straggler(Event, frozen=True, kw_only=True):
    """Two meetings of the ranks have found that a pod is slower than the others, or that none is any more."""

    slow: Annotated[str | None, says("name of the pod; null: none is slower any more")]
    slow_rank: Annotated[Whole | None, says("its slowest rank")]
    loses_in: Annotated[str | None, says("where it loses time: data_wait, compute, or communication")]
    seconds: Annotated[
        float | None, says("that a step of it takes there; in communication, a message to rank 0 and back")
    ]
    others: Annotated[float | None, says("median of the same over the other pods; null if there is none to compare")]


class Saved(Event, frozen=True, kw_only=True):
    """A checkpoint is written."""

    path: Annotated[str, says("file")]
    epoch: Annotated[Whole, says("epoch in progress, from 1")]
    position: Annotated[Whole, says("samples of the epoch that all ranks together have consumed")]
    seconds: Annotated[float, says("time that saving took")]


class SaveFailed(Event, frozen=True, kw_only=True):
    """A checkpoint could not be written. The training continues."""

    epoch: Annotated[Whole, says("epoch in progress, from 1")]
    position: Annotated[Whole, says("samples of the epoch that all ranks together have consumed")]
    cause: Annotated[str, says("message of the error")]


class Proved(Event, frozen=True, kw_only=True):
    """The tallies of a phase were compared with its contract."""

    phase: Annotated[str, says("name of the phase, for example train or test")]
    epoch: Annotated[Whole, says("epoch, from 1")]
    holds: Annotated[bool, says("whether every rank consumed exactly the samples that the contract names")]


class Epoch(Event, frozen=True, kw_only=True):
    """An epoch is trained, proved, and evaluated."""

    epoch: Annotated[Whole, says("epoch, from 1")]
    loss: Annotated[float | None, says("mean over the training samples; null if not finite")]
    test_loss: Annotated[float | None, says("mean over the test samples; null if not finite")]
    test_accuracy: Annotated[float, says("share of the test samples that are classified correctly, from 0 to 1")]
    tested: Annotated[Whole, says("number of test samples")]
    samples_per_second: Annotated[float, says("training samples of all ranks a second")]


class Stopped(Event, frozen=True, kw_only=True):
    """All ranks have stopped after the same step, because a rank received a signal."""

    signal: Annotated[Whole, says("number of the signal")]
    saved: Annotated[bool, says("whether a checkpoint has all steps")]
    epoch: Annotated[Whole, says("epoch in progress, from 1")]
    position: Annotated[Whole, says("samples of the epoch that all ranks together have consumed")]


class WriteFailed(Event, frozen=True, kw_only=True):
    """The results of a run whose plan is fulfilled could not be written. The run retries for some minutes."""

    output: Annotated[str, says("folder of the results")]
    cause: Annotated[str, says("message of the error")]


class Complete(Event, frozen=True, kw_only=True):
    """Nothing is left to do: the plan is fulfilled, and its results are written."""

    model: Annotated[str | None, says("`sha256:` and the hash of the model's file; null if there is none")]
    output: Annotated[str | None, says("folder of the results; null if there is none")]


class Stuck(Event, frozen=True, kw_only=True):
    """The ranks of a pod take no batch, or use no CPU. The pod's entry point has written their stacks."""

    seconds: Annotated[
        float | None,
        says(
            "time without a batch, or without the use of a CPU; null: the ranks are killed, as another pod has failed"
        ),
    ]
    stands: Annotated[str, says("where the ranks stand, of all pods that have told it")]
    stacks: Annotated[str | None, says("file with the stacks; null if it could not be written")]


class Continued(Event, frozen=True, kw_only=True):
    """The ranks of a pod that has reported `stuck` continue."""


class Observed(Event, frozen=True, kw_only=True):
    """A pass of a DataLoader has ended in a rank of a program without an account. The pod's entry point reports it."""

    of_rank: Annotated[Whole, says("global rank")]
    loader: Annotated[str, says("where the program iterates, and the type of the dataset")]
    phase: Annotated[str, says("train if an optimizer has stepped after a batch of it, else evaluate")]
    number: Annotated[Whole, says("number of the pass, from 1, among those of this loader in its process")]
    samples: Annotated[Whole, says("samples that were handed out")]
    batches: Annotated[Whole, says("batches that were handed out")]
    whole: Annotated[bool, says("whether it reached its end; else the program left it")]


class Ended(Event, frozen=True, kw_only=True):
    """The entry point of a pod ends. A pod that is killed does not report it."""

    code: Annotated[Whole, says("exit code")]
    kind: Annotated[
        str | None, says("known, unexplained (an exit code alone), consequence (of another pod's end), or null")
    ]
    cause: Annotated[str | None, says("what ended the pod, at most 1000 characters; null after success")]


KINDS: tuple[type[Event], ...] = tuple(Event.__subclasses__())


class Stamp(Struct, frozen=True):
    """Which format a line has, and when it was printed."""

    v: Annotated[Literal[1], says("version of the format")]
    time: Annotated[float, Meta(gt=-_DATES, lt=_DATES), says("seconds since 1970, by the pod's clock")]


class Record(Struct, frozen=True):
    """An event, and who reported it when."""

    time: float  # seconds since 1970, by the pod's clock
    source: Source
    event: Event


_stamps = msgspec.json.Decoder(Stamp)
_sources = msgspec.json.Decoder(Source)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(reduce(or_, KINDS))


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
    values = {"v": VERSION, "event": _kind(type(record.event).__name__), "time": record.time}
    fields = asdict(record.source) | asdict(record.event)
    values |= {name: _plain(name, value) for name, value in fields.items()}
    return PREFIX + json.dumps(values, separators=(",", ":"))


def read(line: str) -> Record | None:
    """The event in a line of a log, whatever stands before it; None where there is none that this version knows."""
    _, prefix, text = line.partition(PREFIX)
    if not prefix:
        return None
    try:
        stamp = _stamps.decode(text)
        return Record(stamp.time, _sources.decode(text), _events.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):  # cut off, mixed up with others, or of others
        return None


def in_lines(lines: Iterable[str]) -> Iterator[Record]:
    """The events in the lines of a log."""
    return (record for line in lines if (record := read(line)))


def schema() -> dict[str, Any]:
    """The JSON schema of an event, without PREFIX."""
    (stamp, source, *kinds), parts = msgspec.json.schema_components((Stamp, Source, *KINDS))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a torchtally pod",
        "allOf": [stamp, source],
        "oneOf": kinds,
        "$defs": parts,
    }


def _plain(name: str, value: Any) -> Any:
    """As JSON has it, which knows no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value[:_LONGEST] if name == "cause" and value else value
