"""One run, out of the events of rank 0 and of all ranks' tally lines."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace

from torchtally import events
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.record.blocks import Block
from torchtally.record.model import (
    Attempt,
    Checkpoint,
    Epoch,
    EpochProof,
    LastLine,
    Phase,
    Progress,
    Run,
    State,
    Straggler,
)
from torchtally.record.spread import Spread

_REPORTS = 256  # of each pod, that are kept
_CHECKPOINTS = _STRAGGLERS = 1024
_SECOND = 1.0
_Key = tuple[int, int, str, int]  # attempt, its begin, phase, epoch
_Place = tuple[float, float]  # in the run's story: epoch, and number of the phase in the plan


class RunLines:
    """What is known of the run with this id."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._task: str | None = None
        self.pod: str | None = None  # of rank 0
        self._attempts: list[Attempt] = []  # that rank 0 has reported
        self._blocks: dict[_Key, Block] = {}
        self._proved: dict[tuple[int, str, int], tuple[float, bool]] = {}  # by attempt, phase, epoch
        self._progress: dict[str, Spread[Progress]] = defaultdict(lambda: Spread(_REPORTS))
        self._epochs: dict[tuple[int | None, int], Epoch] = {}
        self._checkpoints: Spread[Checkpoint] = Spread(_CHECKPOINTS)
        self._stragglers: Spread[Straggler] = Spread(_STRAGGLERS)
        self._last: RunSummary | None = None
        self._newest: TallyLine | None = None
        self._stopped = self._complete = 0.0  # moments

    def add(self, record: events.Record) -> None:
        """An event of a rank."""
        time, source, event = record.time, record.source, record.event
        match event:
            case events.Begun() | events.Resumed():
                self._task, self.pod = event.task, source.pod
                self._attempts.append(_attempt(time, source.attempt or 0, event))
                return
            case events.Progress():
                self._progress[source.pod].add(
                    Progress(time=time, pod=source.pod, attempt=source.attempt, **asdict(event))
                )
            case events.Straggler():
                self._stragglers.add(Straggler(time=time, attempt=source.attempt, **asdict(event)))
            case events.Proved():
                self._proved[source.attempt or 0, event.phase, event.epoch] = time, event.holds
            case events.Epoch():
                self._epochs[source.attempt, event.epoch] = Epoch(
                    time=time,
                    attempt=source.attempt,
                    epoch=event.epoch,
                    loss=event.loss,
                    test_loss=event.test_loss,
                    test_accuracy=event.test_accuracy,
                    samples_per_second=event.samples_per_second,
                )
            case events.Saved():
                at = {"epoch": event.epoch, "position": event.position}
                self._save(
                    Checkpoint(
                        time=time, attempt=source.attempt, **at, seconds=event.seconds, path=event.path, cause=None
                    )
                )
            case events.SaveFailed():
                at = {"epoch": event.epoch, "position": event.position}
                self._save(
                    Checkpoint(time=time, attempt=source.attempt, **at, seconds=None, path=None, cause=event.cause)
                )
            case events.Stopped():
                self._stopped = max(self._stopped, time)
            case events.Complete():
                self._complete = max(self._complete, time)
        if source.rank == 0:
            self._seen(time)

    def tally(self, line: TallyLine) -> None:
        """A tally line of a rank, or of all."""
        key = (*line.attempt_began, *line.block)
        if (block := self._blocks.get(key)) is None:
            block = self._blocks[key] = Block(line)
        block.add(line)
        if self._newest is None or line.attempt_began >= self._newest.attempt_began:
            self._newest = line

    def end(self, line: RunSummary) -> None:
        """The last line."""
        if self._last is None or line.attempt_began >= self._last.attempt_began:
            self._last = line

    @property
    def begin(self) -> float:
        """When the first attempt began, as far as that is known."""
        moments = [each.first for each in self._attempts if each.first is not None]
        moments += [block.first.began / 1000 for block in self._blocks.values() if block.first.began]
        return min(moments, default=float("inf"))

    def run(self, ended: float) -> Run:
        """The whole. `ended`: when a start of rank 0's pod has ended last."""
        attempts, newest, last = self._paired(), self._newest, self._last
        stated = newest or last
        return Run(
            id=self._id,
            task=self._task or (stated.task if stated else None),
            state=self._state(attempts, ended),
            seed=stated.seed if stated else None,
            world=next((each.world for each in reversed(attempts) if each.world), None),
            plan=dict(stated.plan) if stated else {},
            phases=tuple(self._phases()),
            attempts=tuple(attempts),
            proofs=tuple(self._proofs(attempts)),
            progress=tuple(report for pod in sorted(self._progress) for report in self._progress[pod].items),
            epochs=tuple(sorted(self._epochs.values(), key=lambda each: (each.epoch, each.time))),
            checkpoints=tuple(self._checkpoints.items),
            stragglers=tuple(self._stragglers.items),
            last_line=_last_line(last) if last else None,
        )

    def _save(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.add(checkpoint)

    def _seen(self, time: float) -> None:
        """Rank 0 has reported at this time."""
        for at in reversed(range(len(self._attempts))):
            attempt = self._attempts[at]
            if attempt.first is not None and attempt.first <= time:
                self._attempts[at] = replace(attempt, last=max(time, attempt.last or time))
                return

    def _paired(self) -> list[Attempt]:
        """The attempts, with the begins that tally lines state; those of which no event has come, too."""
        attempts = list(self._attempts)
        worlds = {block.attempt: block.first.world for block in self._blocks.values()}
        for number, began in sorted(worlds):
            at = [at for at, each in enumerate(attempts) if each.number == number and not each.began]
            after = [i for i in at if not began or (attempts[i].first or 0.0) >= began / 1000 - _SECOND]
            if after:
                attempts[after[0]] = replace(attempts[after[0]], began=began)
            else:
                first = began / 1000 or None
                lone = replace(_UNTOLD, number=number, began=began, world=worlds[number, began], first=first)
                attempts.append(lone)
        return sorted(attempts, key=lambda each: (each.number, each.began, each.first or 0.0))

    def _state(self, attempts: list[Attempt], ended: float) -> State:
        newest = max((each.first or 0.0 for each in attempts), default=0.0)
        number = max((each.number for each in attempts), default=0)
        if self._complete > newest or (self._last and self._last.attempt >= number):
            return State.COMPLETE
        return State.STOPPED if max(self._stopped, ended) > newest else State.RUNNING

    def _phases(self) -> Iterator[Phase]:
        newest: dict[str, TallyLine] = {}
        for block in sorted(self._blocks.values(), key=lambda block: block.attempt):
            newest[block.first.phase] = block.first
        plan = self._newest.plan if self._newest else {}
        for name in sorted(newest, key=[*plan, *newest].index):
            line = newest[name]
            yield Phase(
                name=name,
                epochs=plan.get(name, line.plan[name]),
                n=line.n,
                batch=line.batch,
                contract=line.contract,
                order=line.order,
                data=line.data,
            )

    def _proofs(self, attempts: list[Attempt]) -> Iterator[EpochProof]:
        places = {phase: place for place, phase in enumerate(self._newest.plan if self._newest else ())}

        def place(key: _Key) -> _Place:
            return key[3], places.get(key[2], len(places))

        repeated = self._repeated({(*key[:2], place(key)) for key in self._blocks}, attempts)
        newest = {(key[0], *key[2:]): key for key in sorted(self._blocks)}  # of attempts with one number
        for key in sorted(self._blocks, key=lambda key: (place(key), key[:2])):
            event = (key[0], *key[2:])
            time, holds = self._proved.get(event, (None, None)) if newest[event] == key else (None, None)
            yield self._blocks[key].proof(time, holds, place(key) >= repeated[key[:2]])

    def _repeated(self, lines: set[tuple[int, int, _Place]], attempts: list[Attempt]) -> dict[tuple[int, int], _Place]:
        """By attempt, from which place on later ones went through the run again."""
        begins: dict[tuple[int, int], _Place] = {}
        for number, began, place in lines:
            begins[number, began] = min(place, begins.get((number, began), place))
        for each in attempts:  # its epoch in progress may be complete but for an evaluation
            again: _Place = (each.epoch + 1, 0) if each.resumed else (1, 0)
            if each.last is not None:  # reported, so that it is known whether it began anew
                key = each.number, each.began
                begins[key] = min(again, begins.get(key, again))
        repeated: dict[tuple[int, int], _Place] = {}
        least: _Place = (float("inf"), 0)
        for key in sorted(begins, reverse=True):
            repeated[key] = least
            least = min(least, begins[key])
        return repeated


_UNTOLD = Attempt(
    number=0,
    began=0,
    world=None,
    resumed=False,
    checkpoint=None,
    epoch=1,
    position=0,
    discarded=0,
    first=None,
    last=None,
)


def _last_line(last: RunSummary) -> LastLine:
    return LastLine(
        attempt=last.attempt, began=last.began, model=last.model, discarded=last.discarded, stopped=last.stopped
    )


def _attempt(time: float, number: int, event: events.Begun | events.Resumed) -> Attempt:
    known = replace(_UNTOLD, number=number, world=event.world, first=time, last=time)
    if isinstance(event, events.Begun):
        return known
    return replace(
        known,
        resumed=True,
        checkpoint=event.checkpoint,
        epoch=event.epoch,
        position=event.position,
        discarded=event.discarded,
    )
