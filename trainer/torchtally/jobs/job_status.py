"""A job at one moment: by its cluster, by what its pods have reported, and by the verifier."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchtally.jobs import starting
from torchtally.jobs.job_outcome import Standing
from torchtally.observed.judge import Observation
from torchtally.record.model import Checkpoint, Epoch, Life, Pod, Progress, Restart, Run, Snapshot, State, Straggler

# What a pod does, by the first moment of a start that has not come yet.
_STEPS = (
    ("scheduled", "waits for a node"),
    ("container", "pulls its image"),
    ("started", "imports PyTorch"),
    ("rendezvous", "waits for the other pods"),
    ("data", "loads its data"),
    ("first_step", "makes its first step"),
)


@dataclass(frozen=True, kw_only=True)
class PodRow:
    name: str
    ranks: tuple[int, ...]
    does: str
    step: int | None = None
    steps: int | None = None
    samples_per_second: float | None = None  # its share of those of all ranks
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class Overview:
    job: str
    state: str  # a word
    standing: Standing
    proof: str  # a sentence of the verifier, or of how much the lines state so far
    at: float  # the moment, in seconds since 1970
    kind: str | None = None  # None: logs
    namespace: str | None = None
    run: str | None = None
    task: str | None = None
    attempt: int | None = None
    world: int | None = None
    phase: str | None = None
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    share: float | None = None  # of the training that is done, from 0 to 1
    seconds_left: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    checkpoint: Checkpoint | None = None  # the newest that was written
    save_failed: str | None = None  # the cause, if none was written since
    straggler: Straggler | None = None  # the pod that is slower than the others
    pods: tuple[PodRow, ...] = ()
    start: starting.Start | None = None
    restarts: tuple[Restart, ...] = ()
    cause: str | None = None  # what ended the pods, as far as one of them knows
    silent: tuple[str, ...] = ()  # pods of a job that has ended without a log, or a line, and why
    notes: tuple[str, ...] = ()  # warnings of the cluster, and what a preflight has found


def of(
    name: str,
    snapshot: Snapshot,
    *,
    at: float,
    standing: Standing,
    state: str | None = None,
    kind: str | None = None,
    namespace: str | None = None,
    proof: str | None = None,
    waits: Mapping[str, str] | None = None,
    silent: Iterable[str] = (),
    warnings: Iterable[str] = (),
) -> Overview:
    """The overview of the newest run in a record.

    Args:
        name: That of the job, or of its logs.
        snapshot: The record.
        at: The moment, in seconds since 1970.
        standing: What the job comes to.
        state: The cluster's word for what the job does; None for logs.
        kind: PyTorchJob or TrainJob.
        namespace: Of the job.
        proof: A sentence of the verifier.
        waits: By pod, why it does not run.
        silent: Why pods have no log, or no line.
        warnings: What the cluster warns of.
    """
    run, waits = snapshot.run, waits or {}
    report = progress_of(run) if run else None
    rows = tuple(_row(pod, run, waits.get(pod.name)) for pod in snapshot.pods)
    told = {pod.name for pod in snapshot.pods}
    rows += tuple(PodRow(name=pod, ranks=(), does=f"waits: {why}") for pod, why in waits.items() if pod not in told)
    common: dict[str, Any] = {
        "job": name,
        "at": at,
        "standing": standing,
        "state": state or _state(snapshot),
        "kind": kind,
        "namespace": namespace,
        "proof": proof or stated(run, snapshot.observation),
        "pods": rows,
        "start": starting.of(snapshot.pods),
        "straggler": _straggler(run) if run and standing is not Standing.FAILED else None,
        "restarts": snapshot.restarts,
        "cause": _cause(snapshot.pods),
        "silent": tuple(silent),
        "notes": (*warnings, *(f"preflight: {pod.life.slow}" for pod in snapshot.pods if pod.life.slow)),
    }
    if run is None:
        return Overview(**common, world=snapshot.observation.world if snapshot.observation else None)
    newest = run.attempts[-1] if run.attempts else None
    results = run.epochs[-1] if run.epochs else None
    written = [each for each in run.checkpoints if each.cause is None]
    failed = run.checkpoints[-1].cause if run.checkpoints else None
    epoch, share = _reached(run, report)
    failed_job = standing is Standing.FAILED
    going = report if run.state is State.RUNNING and not failed_job else None
    return Overview(
        **common,
        run=run.id,
        task=run.task,
        attempt=newest.number if newest else None,
        world=run.world,
        phase=report.phase if report else None,
        epoch=epoch,
        epochs=report.epochs if report else max(run.plan.values(), default=None),
        step=report.step if report and share != 1.0 else None,
        steps=report.steps if report and share != 1.0 else None,
        share=share,
        seconds_left=max(0.0, going.seconds_left - (at - going.time)) if going and going.seconds_left else None,
        samples_per_second=None if failed_job else _speed(report, results),
        loss=_newer_loss(run, report),
        accuracy=results.test_accuracy if results else None,
        checkpoint=written[-1] if written else None,
        save_failed=failed,
    )


def over(snapshot: Snapshot) -> bool:
    """Whether no more lines will come, as far as the lines tell."""
    ended = all(pod.life.ended is not None or pod.life.started is None for pod in snapshot.pods)
    if snapshot.run is None:  # a program without an account, observed or not
        return ended and any(pod.life.started or pod.life.ended for pod in snapshot.pods)
    return ended and snapshot.run.state is State.COMPLETE


def _cause(pods: Iterable[Pod]) -> str | None:
    """What ended the first pod that knows it, or else any pod; at worst, the consequence of another pod's end."""
    failed = [pod for pod in pods if pod.life.code and pod.life.cause]
    failed.sort(key=lambda pod: (pod.life.kind != "known", pod.life.kind == "consequence"))
    return next((f"{pod.name} ended with {pod.life.code}: {pod.life.cause}" for pod in failed), None)


def _state(snapshot: Snapshot) -> str:
    if snapshot.run:
        return str(snapshot.run.state)
    if over(snapshot):
        return str(State.STOPPED if any(pod.life.code for pod in snapshot.pods) else State.COMPLETE)
    return str(State.RUNNING) if snapshot.observation else "starting"


def progress_of(run: Run) -> Progress | None:
    """The newest report of the newest attempt."""
    newest = max((each.number for each in run.attempts), default=None)
    reports = [each for each in run.progress if newest is None or each.attempt == newest]
    return max(reports, key=lambda each: (each.time, each.loss is not None), default=None)


def stated(run: Run | None, observation: Observation | None = None) -> str:
    """How much the lines state. Only the verifier says that anything is proved."""
    if run is None and observation:
        passes = sum(len(loader.passes) for loader in observation.loaders)
        return next(iter(observation.faults), f"no fault so far: {passes} pass{'es' * (passes != 1)} observed")
    counting = [each for each in run.proofs if not each.superseded] if run else []
    wrong = [each for each in counting if each.holds is False]
    if wrong:
        return f"{wrong[0].phase} epoch {wrong[0].epoch}: samples were lost or duplicated"
    done = Counter(each.phase for each in counting if each.holds)
    if not done:
        return "no epoch is complete"
    return "no fault so far: " + ", ".join(f"{phase} {n} epoch{'s' * (n > 1)}" for phase, n in done.items())


def _reached(run: Run, report: Progress | None) -> tuple[int | None, float | None]:
    """The epoch in progress, and the completed share of the training."""
    if run.state is State.COMPLETE:
        return max(run.plan.values(), default=None), 1.0
    if report is None:
        return (run.attempts[-1].epoch if run.attempts else None), None
    return report.epoch, min(1.0, (report.epoch - 1 + report.step / max(report.steps, 1)) / max(report.epochs, 1))


def _speed(report: Progress | None, results: Epoch | None) -> float | None:
    newest = report or results
    return newest.samples_per_second if newest else None


def _newer_loss(run: Run, report: Progress | None) -> float | None:
    losses = [(each.time, each.loss) for each in run.progress if each.loss is not None]
    losses += [(each.time, each.loss) for each in run.epochs if each.loss is not None]
    return max(losses, default=(0.0, None))[1]


def _row(pod: Pod, run: Run | None, waits: str | None) -> PodRow:
    life = pod.life
    own = [each for each in run.progress if each.pod == pod.name] if run else []
    report = own[-1] if own and life.ended is None and own[-1].attempt == life.attempt else None
    share = (pod.processes or len(pod.ranks) or 1) / run.world if run and run.world else None
    return PodRow(
        name=pod.name,
        ranks=pod.ranks,
        does=f"waits: {waits}" if waits else does(life, trains=bool(pod.ranks)),
        step=report.step if report else None,
        steps=report.steps if report else None,
        samples_per_second=round(report.samples_per_second * share, 1) if report and share else None,
        restarts=len(pod.lives) - 1,
    )


def does(life: Life, *, trains: bool = False) -> str:
    """What a start of a pod does, in words. `trains`: its ranks have reported, if its entry point has not."""
    if life.ended is not None:
        return "has ended" if life.code == 0 else f"ended with {life.code}"
    if life.stuck is not None and life.stuck == life.last:
        return f"takes no batch: {life.stands}"
    moments = [getattr(life, name) for name, _ in _STEPS]
    reached = max((at for at, moment in enumerate(moments) if moment is not None), default=None)
    if trains and life.started is None and life.data is None:
        return "trains"
    if reached is None:
        return "is not known"
    if reached + 1 == len(_STEPS):
        return "trains"
    return _STEPS[reached + 1][1]


def _straggler(run: Run) -> Straggler | None:
    """The pod that the ranks of the newest attempt have named, while they train."""
    newest = run.attempts[-1].number if run.attempts else None
    named = [each for each in run.stragglers if each.attempt == newest]
    return named[-1] if named and named[-1].slow and run.state is State.RUNNING else None
