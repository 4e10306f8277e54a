"""One run, out of the events of rank 0 and of all ranks' tally lines."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec.structs import asdict

from torchtally import events
from torchtally.proof.line import TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.record.downsampling import Spread
from torchtally.record.model import (
    Attempt,
    Checkpoint,
    Epoch,
    EpochProof,
    Phase,
    Progress,
    Run,
    State,
    Straggler,
)
from torchtally.verifier import lineage
from torchtally.verifier.line_groups import Lines, together
from torchtally.verifier.lineage import Place

_REPORTS = 256  # of each pod, that are kept
_CHECKPOINTS = _STRAGGLERS = 1024
_SECOND = 1.0
_Key = tuple[int, int, str, int]  # attempt, its begin, phase, epoch


class RunLines:
    """What is known of the run with this id."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._task: str | None = None
        self.pod: str | None = None  # of rank 0
        self._attempts: list[Attempt] = []  # that rank 0 has reported
        self._proved: dict[tuple[int, str, int], bool] = {}  # by attempt, phase, epoch
        self._progress: dict[str, Spread[Progress]] = defaultdict(lambda: Spread(_REPORTS))
        self._epochs: dict[tuple[int | None, int], Epoch] = {}
        self._checkpoints: Spread[Checkpoint] = Spread(_CHECKPOINTS)
        self._stragglers: Spread[Straggler] = Spread(_STRAGGLERS)
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
                self._proved[source.attempt or 0, event.phase, event.epoch] = event.holds
            case events.Epoch():
                told = Epoch(time=time, attempt=source.attempt, **asdict(event))
                self._epochs[source.attempt, event.epoch] = told
            case events.Saved() | events.SaveFailed():
                self._checkpoints.add(Checkpoint(time=time, attempt=source.attempt, **asdict(event)))
            case events.Stopped():
                self._stopped = max(self._stopped, time)
            case events.Complete():
                self._complete = max(self._complete, time)
        if source.rank == 0:
            self._seen(time)

    def run(self, ended: float, groups: Sequence[Lines], lasts: Sequence[RunSummary]) -> Run:
        """The whole, with the tally lines and the last lines of the run.

        `ended`: when a start of rank 0's pod has ended last.
        """
        firsts = sorted((each.first for each in groups), key=lambda line: line.attempt_began)
        attempts, last = self._paired(firsts), max(lasts, key=lambda line: line.attempt_began, default=None)
        stated = firsts[-1] if firsts else last
        plan = dict(stated.plan) if stated else {}
        return Run(
            id=self._id,
            task=self._task or (stated.task if stated else None),
            state=self._state(attempts, ended, last),
            seed=stated.seed if stated else None,
            world=next((each.world for each in reversed(attempts) if each.world), None),
            plan=plan,
            phases=tuple(_phases(firsts, plan)),
            attempts=tuple(attempts),
            proofs=tuple(self._proofs(groups, [*plan], attempts)),
            progress=tuple(report for pod in sorted(self._progress) for report in self._progress[pod].items),
            epochs=tuple(sorted(self._epochs.values(), key=lambda each: (each.epoch, each.time))),
            checkpoints=tuple(self._checkpoints.items),
            stragglers=tuple(self._stragglers.items),
        )

    def _seen(self, time: float) -> None:
        """Rank 0 has reported at this time."""
        for at in reversed(range(len(self._attempts))):
            attempt = self._attempts[at]
            if attempt.first is not None and attempt.first <= time:
                self._attempts[at] = replace(attempt, last=max(time, attempt.last or time))
                return

    def _paired(self, firsts: Sequence[TallyLine]) -> list[Attempt]:
        """The attempts, with the begins that tally lines state; those of which no event has come, too."""
        attempts = list(self._attempts)
        worlds = {line.attempt_began: line.world for line in firsts}
        for number, began in sorted(worlds):
            at = [at for at, each in enumerate(attempts) if each.number == number and not each.began]
            after = [i for i in at if not began or (attempts[i].first or 0.0) >= began / 1000 - _SECOND]
            if after:
                attempts[after[0]] = replace(attempts[after[0]], began=began)
            else:
                first = began / 1000 or None
                attempts.append(Attempt(number=number, began=began, world=worlds[number, began], first=first))
        return sorted(attempts, key=lambda each: (each.number, each.began, each.first or 0.0))

    def _state(self, attempts: list[Attempt], ended: float, last: RunSummary | None) -> State:
        newest = max((each.first or 0.0 for each in attempts), default=0.0)
        number = max((each.number for each in attempts), default=0)
        if self._complete > newest or (last and last.attempt >= number):
            return State.COMPLETE
        return State.STOPPED if max(self._stopped, ended) > newest else State.RUNNING

    def _proofs(self, groups: Sequence[Lines], phases: list[str], attempts: list[Attempt]) -> Iterator[EpochProof]:
        """By epoch, phase, and attempt."""
        blocks: dict[_Key, list[Lines]] = defaultdict(list)
        for each in groups:
            blocks[*each.first.attempt_began, *each.first.block].append(each)

        def place(key: _Key) -> Place:
            return lineage.place(key[2:], phases)

        repeated = lineage.repeated([*((key[:2], place(key)) for key in blocks), *_reported(attempts)])
        newest = {(key[0], *key[2:]): key for key in sorted(blocks)}  # of attempts with one number
        for key in sorted(blocks, key=lambda key: (place(key), key[:2])):
            event = (key[0], *key[2:])
            denied = newest[event] == key and self._proved.get(event) is False
            holds = not denied and not any(each.faulty for each in blocks[key])
            yield EpochProof(
                phase=key[2],
                epoch=key[3],
                holds=None if holds and together(blocks[key]) is None else holds,
                superseded=place(key) >= repeated[key[:2]],
            )


def _reported(attempts: list[Attempt]) -> Iterator[tuple[tuple[int, int], Place]]:
    """Where attempts that have reported began: whether anew is known of them alone."""
    for each in attempts:
        if each.last is not None:  # its epoch in progress may be complete but for an evaluation
            yield (each.number, each.began), (each.epoch + 1, 0) if each.resumed else (1, 0)


def _phases(firsts: Sequence[TallyLine], plan: Mapping[str, int]) -> Iterator[Phase]:
    """As the newest attempt states each, in the order of the plan."""
    newest = {line.phase: line for line in firsts}
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


def _attempt(time: float, number: int, event: events.Begun | events.Resumed) -> Attempt:
    told = {name: value for name, value in asdict(event).items() if name != "task"}
    return Attempt(number=number, resumed=isinstance(event, events.Resumed), first=time, last=time, **told)
