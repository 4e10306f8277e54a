"""How far the phases of a run are, over all its starts, and how far they have to go."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from torchtally.accounting.ledger.state import PhaseState, State
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.order.drawn import AnySampler
from torchtally.accounting.order.plan import Every, Extent, Planned, as_values, checked, extent
from torchtally.accounting.order.position import Position
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.proofs import last_line
from torchtally.errors import Refused, Unproven
from torchtally.log import log

ANOTHER = "continue as before, or begin another run in another output folder"


class Body:
    """The epoch and the batch loops that the program is in: a state of a batch loop resumes with the rest of the body.

    Attributes:
        loaded: Epoch of a loaded state, if the rest of its body still has to run.
        rest: The first epoch after a resume, of whose body a part may be made.
        begun: Number of bodies that have begun.
        evaluated: The epoch of a loaded state's body, and the evaluations that it has made outside of its batch loops.
    """

    def __init__(self) -> None:
        self.loaded: int | None = None
        self.rest: int | None = None
        self.begun = 0
        self.evaluated: tuple[int, Mapping[str, tuple[int, ...]]] | None = None
        self._evaluations: dict[str, list[int]] = {}  # by phase: those that have begun outside of the batch loops
        self._epoch: int | None = None  # the one that `Account.epochs` has yielded
        self._loops: dict[object, int] = {}  # the batch loops in progress, with the epochs of their phases

    @property
    def within(self) -> bool:
        """Whether the program is in an epoch that `Account.epochs` has yielded."""
        return self._epoch is not None

    @property
    def unfinished(self) -> int | None:
        """The epoch whose body a resume from here must finish, because the program is in one of its batch loops."""
        if not self._loops:
            return self.loaded
        return max(self._loops.values()) if self._epoch is None else self._epoch

    def evaluation(self, phase: str, upcoming: int) -> int:
        """The epoch of a phase that does not train: those that a body has made come first if it is begun again."""
        if self._epoch is None or self._loops:
            return upcoming
        begun = self._evaluations.setdefault(phase, [])
        again = self.evaluated[1].get(phase, ()) if self.evaluated and self.evaluated[0] == self._epoch else ()
        begun.append(again[len(begun)] if len(begun) < len(again) else upcoming)
        return begun[-1]

    def evaluations(self, completed: Callable[[str], int]) -> tuple[int, Mapping[str, tuple[int, ...]]] | None:
        """What a state has as `evaluated`."""
        if self._epoch is None:
            return self.evaluated
        made = {
            phase: [each for each in begun if each <= completed(phase)] for phase, begun in self._evaluations.items()
        }
        found = {phase: tuple(numbers) for phase, numbers in made.items() if numbers}
        return (self._epoch, found) if found else None

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """The context in which the program runs the body of this epoch."""
        self._epoch, self.begun, self._evaluations = number, self.begun + 1, {}
        try:
            yield
            self.loaded = None  # the first epoch that a resume yields
        finally:
            self._epoch = None
            self._loops.clear()  # a loop that the program left can still have its iterator

    @contextmanager
    def loop(self, epoch: int) -> Iterator[None]:
        """The context of a batch loop, in this epoch of a phase that trains."""
        loop = object()
        self.loaded, self._loops[loop] = None, epoch
        try:
            yield
        finally:
            self._loops.pop(loop, None)


class Progress:
    """The plan of a run, and what its completed epochs have consumed."""

    def __init__(self, plan: Mapping[str, Planned]):
        self._plan = checked(plan)
        self.given = as_values(self._plan)
        self.extents: dict[str, Extent] = {}  # by phase, as `phases`; once the batches are known
        self.phases: dict[str, PhaseState] = {}  # their `position` is where a resume begins
        self.loaded: State | None = None
        self.body = Body()
        self.stopped: str | None = None  # why the program has stopped the run
        self.waiting: Counter[str] = Counter()  # by phase: epochs that wait for their proof while a later one continues
        self._rested: set[str] = set()  # phases whose loaders have been asked in a body that is begun again

    @property
    def epochs(self) -> dict[str, int]:
        """The epochs of each phase."""
        return {phase: epochs for phase, (epochs, _) in self.extents.items()}

    def completed(self, phase: str) -> int:
        """Number of completed epochs, those that wait for their proof included."""
        return self.phases[phase].completed + self.waiting[phase] if phase in self.phases else 0

    @property
    def is_complete(self) -> bool:
        """Whether all epochs of the plan are proved, or the program has stopped the run."""
        made = bool(self.epochs) and all(self.completed(phase) >= planned for phase, planned in self.epochs.items())
        return not any(self.waiting.values()) and (made or self.stopped is not None)

    def was_complete(self, phase: str, epoch: int) -> bool:
        """Whether the loaded state has this epoch as complete."""
        known = self.loaded.phases.get(phase) if self.loaded else None
        return known is not None and epoch <= known.completed + len(known.ahead)

    def upcoming(self, phase: str) -> int:
        """The epoch of a phase that trains whose batches come next: first that of a body that is begun again."""
        if self.body.rest is not None and phase not in self._rested:
            self._rested.add(phase)
            if self.was_complete(phase, epoch := min(self.body.rest, self.epochs[phase])):
                return epoch
        return self.completed(phase) + 1

    def evaluation(self, phase: str) -> int:
        """The epoch of a phase that does not train whose batches come next."""
        return self.body.evaluation(phase, self.completed(phase) + 1)

    def end(self, phase: str, epoch: int) -> int | None:
        """The position before which an epoch ends, if not that of its order."""
        epochs, end = self.extents[phase]
        return end if epoch == epochs else None

    def stop_problem(self, opened: Set[str]) -> str | None:
        """Why the run cannot be stopped: a loaded epoch in progress, whose samples count, has not continued yet."""
        for phase, state in self.phases.items():
            if state.position and state.position.consumed and phase not in opened:
                epoch = state.positions[-1].epoch
                return f"{phase} epoch {epoch} is in progress: call stop() after its loop has continued"
        return None

    def declare(self, phase: str, found: PhaseState) -> None:
        """Add a phase. Raises Refused if its data or its order is not the run's."""
        known = self.phases.setdefault(phase, found)
        for name, before in known.identity.items():
            if (now := found.identity[name]) != before:
                raise Refused(f"{phase}: its {name} was {before} in this run, and now it is {now}; {ANOTHER}")
        self.phases[phase] = replace(known, sizes=found.sizes)  # a state can have their fingerprint alone

    def measure(self, samplers: Mapping[str, AnySampler]) -> None:
        """Find how far the plan reaches: a plan in steps needs the phase's batch. Raises Refused."""
        for phase, planned in self._plan.items():
            if phase in self.extents:
                continue
            if isinstance(planned, Every):
                self.extents[phase] = self.epochs[next(iter(self._plan))] // planned.epochs, None
                continue
            if isinstance(planned, int):
                self.extents[phase] = planned, None
                continue
            sampler = samplers.get(phase)
            if not isinstance(sampler, Sampler):
                raise Refused(f"the plan of {phase} is {planned}: its loader or sampler must be made before it is used")
            if not (whole := sampler.part()).steps:
                raise Refused(no_step(phase, sampler))
            self.extents[phase] = extent(planned, whole)

    def close(self, line: Mapping[str, Any]) -> None:
        """Add a completed epoch, of which this is the line of all ranks together."""
        after = self.phases[line["phase"]].after(line)
        if (end := line.get("end")) is not None:
            after = replace(after, end=(line["epoch"], end))
        self.phases[line["phase"]] = after
        self.waiting[line["phase"]] -= self.waiting[line["phase"]] > 0

    def left(self, evaluates: Set[str]) -> Iterator[int]:
        """Yield the numbers of the epochs that are left: `Account.epochs`. `evaluates` has phases that do not train."""
        self._note_those_before(evaluates)
        for epoch in range(1, self._last + 1):
            rest = epoch == self.body.loaded
            if rest or (self.stopped is None and self._lacking(epoch, evaluates)):
                if self.loaded and self.body.rest is None:
                    self.body.rest = epoch
                    if not rest:
                        self._say_what_is_made_twice(epoch, evaluates)
                with self.body.epoch(epoch):
                    yield epoch

    def _lacking(self, epoch: int, evaluates: Set[str]) -> list[str]:
        """The phases that have made fewer epochs than the plan says of the first ones of `Account.epochs`.

        It says nothing of a phase that has fewer epochs than others that train, unless that is planned by `Every`.
        """
        trained = max((self._planned(phase) for phase in self.epochs if phase not in evaluates), default=0)
        found = []
        for phase, plan in self._plan.items():
            planned = self._planned(phase)
            due = epoch if planned == self._last or (phase not in evaluates and planned == trained) else 0
            if isinstance(plan, Every):
                due = epoch // plan.epochs
            elif phase in evaluates and trained and planned % trained == 0:  # equally many in each epoch
                due = epoch * (planned // trained)
            if self._made(phase) < min(due, planned):
                found.append(phase)
        return found

    def _say_what_is_made_twice(self, epoch: int, evaluates: Set[str]) -> None:
        """Warn of a state that was saved in the body of an epoch, after its batches and before its evaluation."""
        made = [phase for phase in self.epochs if phase not in evaluates and self.was_complete(phase, epoch)]
        due = [phase for phase in self._lacking(epoch, evaluates) if phase in evaluates]
        if made and due and dist.get_rank() == 0:
            log.warning(
                f"the state was saved after the batches of {made[0]} epoch {epoch} and before the end of {due[0]}, so "
                "what the loop does between, such as scheduler.step(), is made once more: save at the end of the "
                "epoch's body, or in the batch loop"
            )

    def _note_those_before(self, evaluates: Set[str]) -> None:
        """Note which evaluations precede the first of these epochs, such as one of the first weights."""
        trained = [self.phases.get(name) for name, epochs in self.epochs.items() if epochs and name not in evaluates]
        first = bool(trained) and not any(phase and (phase.completed or phase.position) for phase in trained)
        for name in evaluates & self.phases.keys():
            if (phase := self.phases[name]).before is None:
                self.phases[name] = replace(phase, before=phase.completed if first else 0)

    @property
    def _last(self) -> int:
        """The number of the last epoch of `Account.epochs`."""
        return max(map(self._planned, self.epochs))

    def _planned(self, phase: str) -> int:
        """The epochs of a phase in those of `Account.epochs`."""
        return self.epochs[phase] - self._before(phase)

    def _made(self, phase: str) -> int:
        """Those of them that are completed."""
        return self.completed(phase) - self._before(phase)

    def _before(self, phase: str) -> int:
        return (self.phases[phase].before or 0) if phase in self.phases else 0

    def state(self, run: Run, positions: Mapping[str, Sequence[Position]]) -> State:
        """The state of the run, with the positions of epochs in progress."""
        phases = {name: phase for name, phase in self.phases.items() if phase.worlds}
        for name, (first, *others) in positions.items():
            phases[name] = replace(phases[name], position=first, ahead=tuple(others))
        return State(
            run=run.run,
            attempt=run.attempt,
            task=run.task,
            seed=run.seed,
            plan=self.given,
            extents=self.extents,
            stopped=self.stopped,
            unfinished=self._unfinished,
            evaluated=self.body.evaluations(self.completed),
            phases=phases,
        )

    @property
    def _unfinished(self) -> int | None:
        """The epoch whose body a resume must finish, if this does not follow from what its phases have consumed."""
        epoch = self.body.unfinished
        longest = [phase for phase in self.epochs if self._planned(phase) == self._last]
        if epoch is None or (self.stopped is None and any(self._made(phase) < epoch for phase in longest)):
            return None
        return epoch

    def load(self, loaded: State) -> None:
        """Continue at a state. Raises Refused if it is of other data, or of a plan that has not grown to this one."""
        if loaded.plan != self.given and not self._grows_from(loaded):
            raise Refused(
                f"the state is of another run: its plan is {loaded.plan}, and now it is {self.given}; {ANOTHER}"
            )
        declared, self.phases = self.phases, dict(loaded.phases)
        for name, phase in declared.items():
            self.declare(name, phase)
        self.waiting = Counter({name: len(phase.ahead) for name, phase in self.phases.items()})
        self.loaded, self.stopped = loaded, loaded.stopped
        self.extents = {} if self.grown_from else dict(loaded.extents)
        self.body.loaded, self.body.evaluated = loaded.unfinished, loaded.evaluated

    @property
    def grown_from(self) -> Mapping[str, Any] | None:
        """The plan of the loaded state, if that planned fewer epochs."""
        return self.loaded.plan if self.loaded is not None and self.loaded.plan != self.given else None

    def _grows_from(self, loaded: State) -> bool:
        """Whether this plan has the same phases as a state's plan, in epochs or by `Every`, and none has fewer."""
        ended = loaded.stopped is not None or any(phase.end for phase in loaded.phases.values())
        if ended or [*loaded.plan] != [*self.given]:
            return False
        pairs = [(loaded.plan[phase], now) for phase, now in self.given.items()]
        return all(
            before <= now if type(before) is type(now) is int else before == now and "every" in now
            for before, now in pairs
        )

    def last_line(
        self, run: Run, caveats: Sequence[str], discarded: int, model: str | None = None
    ) -> dict[str, Any] | None:
        """The last line of the run, or None if the plan has no epoch. Raises Unproven if the plan is not fulfilled."""
        for phase, planned in self.epochs.items():
            if (made := self.completed(phase)) < planned:
                if self.stopped is None:
                    hint = "; a phase that only some epochs have is planned by Every, for a resume to make it"
                    hint = hint if self.loaded and isinstance(self._plan[phase], int) and planned < self._last else ""
                    raise Unproven(
                        f"the plan has {planned} epoch{'s' * (planned > 1)} of {phase}, and {made} were made{hint}"
                    )
                if phase in self.phases and self.phases[phase].end is None:
                    self.phases[phase] = replace(self.phases[phase], end=(made + 1, 0))
        if unproven := self.stop_problem(set()):
            raise Unproven(f"the run is not proved: {unproven}")
        begun = {name: phase for name, phase in self.phases.items() if phase.worlds}
        in_steps = ", ".join(f"{phase}: {self._plan[phase]}" for phase, (_, end) in self.extents.items() if end)
        if not begun:
            return None
        stopped = self.stopped or in_steps or None
        last = last_line.summary_of(replace(run, plan=self.epochs), begun, stopped, caveats, discarded, model)
        last_line.check(last)
        return last.printed()


def no_step(phase: str, sampler: AnySampler) -> str:
    """The sentence on an epoch without a step."""
    of = f"{sampler.n} for {sampler.world} rank{'s' * (sampler.world > 1)}, contract {sampler.contract}"
    if sampler.whole:
        return f"{phase} has no step that all ranks can fill: {of}, and drop_last=True leaves out the others"
    return f"{phase} has no sample: {of}"
