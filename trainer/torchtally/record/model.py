"""What a record holds. Times are seconds since 1970 by the clock of the pod that reports, None where no line tells.

Those of a pod's lives are by the clock of its cluster, if one tells of them.

msgspec makes JSON of each of these classes. Nothing here is a verdict: a proof is stated by the lines of the pods, and
the verifier alone judges them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchtally import events
from torchtally.observed.judge import Observation
from torchtally.proof.contract import Contract


class State(StrEnum):
    """How far a run is, by its last event."""

    RUNNING = "running"
    STOPPED = "stopped"  # by a signal, or by the end of rank 0's pod; a retry may continue
    COMPLETE = "complete"  # its plan is fulfilled


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of a pod."""

    run: str | None = None
    attempt: int | None = None
    created: float | None = None  # this and the next two are the cluster's moments
    scheduled: float | None = None
    container: float | None = None  # has started
    started: float | None = None  # the entry point is ready to meet the others
    rendezvous: float | None = None
    data: float | None = None
    data_seconds: float | None = None
    first_step: float | None = None  # of this start; other pods than rank 0's report a later step
    last: float | None = None  # any line that bears a time
    slow: str | None = None  # what the preflight has found slow in it
    stuck: float | None = None  # its ranks hang, as far as `last` is no later
    stands: str | None = None  # where they stand
    ended: float | None = None
    code: int | None = None
    kind: str | None = None  # known, unexplained, consequence: as the event `ended` has it
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod by its name, over all its starts."""

    name: str
    ranks: tuple[int, ...]  # as far as lines name them, in order
    processes: int | None  # ranks that it starts
    versions: Mapping[str, str]  # of torchtally, torch, and python, at its last start
    lives: tuple[Life, ...]
    options: str | None = None  # of a built-in task, at its last start

    @property
    def life(self) -> Life:
        """The last one."""
        return self.lives[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run. A number can be used again: an attempt that kept no checkpoint leaves it to the next."""

    number: int
    began: int = 0  # milliseconds since 1970, as in tally lines; 0 where no line tells
    world: int | None = None
    resumed: bool = False
    checkpoint: str | None = None
    epoch: int = 1  # in progress when the attempt began
    position: int = 0  # samples of that epoch which all ranks together had consumed
    discarded: int = 0  # samples known to be lost with restarts, up to this attempt
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a run does in a phase, as its newest line states it."""

    name: str
    epochs: int
    n: int
    batch: int
    contract: Contract
    order: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProof:
    """What the lines of all ranks state about one phase of one epoch."""

    phase: str
    epoch: int
    holds: bool | None  # as the lines and the event `proved` state it; None: the line of all ranks has not come
    superseded: bool  # a later attempt went back before it, so it is not behind the final weights


class Progress(events.Progress, frozen=True, kw_only=True, tag=False):
    """A report of a pod's first rank between two epochs' ends."""

    time: float
    pod: str
    attempt: int | None


class Straggler(events.Straggler, frozen=True, kw_only=True, tag=False):
    """A pod that is slower than the others, or with `slow` None the end of that."""

    time: float
    attempt: int | None


class Epoch(events.Epoch, frozen=True, kw_only=True, tag=False):
    """The results of an epoch of a built-in task."""

    time: float
    attempt: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that is written, or with a cause one that could not be."""

    time: float
    attempt: int | None
    epoch: int
    position: int
    seconds: float | None = None
    path: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The end of a pod's life that another one followed. Without a code, the pod could not report its end."""

    time: float
    pod: str
    run: str | None
    attempt: int | None  # that ended
    code: int | None
    kind: str | None
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: what is known of it in all its attempts."""

    id: str
    task: str | None
    state: State
    seed: int | None
    world: int | None  # of the newest attempt
    plan: Mapping[str, int]  # epochs of each phase; empty before a line states it
    phases: tuple[Phase, ...]
    attempts: tuple[Attempt, ...]
    proofs: tuple[EpochProof, ...]  # by epoch, phase, and attempt
    progress: tuple[Progress, ...]  # by pod and time; of a long run, a part that is evenly spread
    epochs: tuple[Epoch, ...]
    checkpoints: tuple[Checkpoint, ...]  # a part of very many
    stragglers: tuple[Straggler, ...]  # by time; a part of very many


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A record at one moment."""

    runs: tuple[Run, ...]  # by the time of their beginning
    pods: tuple[Pod, ...]  # by their first rank, and then by name
    restarts: tuple[Restart, ...]  # by time
    observation: Observation | None = None  # of programs that keep no account

    @property
    def run(self) -> Run | None:
        """The newest one."""
        return self.runs[-1] if self.runs else None
