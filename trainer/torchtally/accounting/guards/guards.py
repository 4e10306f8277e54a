"""The guards of one account: all of them, but those that the environment switches off."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchtally.accounting.guards.apart import Apart
from torchtally.accounting.guards.changes import Replaced, Unchanged
from torchtally.accounting.guards.contents import Changed, Contents
from torchtally.accounting.guards.evaluated import Evaluated
from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.guards.loaded import Loaded
from torchtally.accounting.guards.unfinished import Unfinished, forget
from torchtally.accounting.guards.unsaved import Unsaved
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.accounting.ledger.state import Hash, State
from torchtally.accounting.ledger.tally import Membership
from torchtally.checkpoints.objects import Objects
from torchtally.errors import Refused

GUARDS: tuple[type[Guard], ...] = (
    Apart,
    Unchanged,
    Replaced,
    Loaded,
    Unfinished,
    Evaluated,
    Unsaved,
    Contents,
    Changed,
)
_VARIABLE = "TORCHTALLY_GUARDS"
_SAID = 16  # caveats of a run, as its last line must not grow without end


def switched_off(env: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the guards that the environment switches off, in their order. Raises Refused."""
    text, known = env.get(_VARIABLE, ""), [each.name for each in GUARDS]
    given = text.split(",") if text else []
    if not {*given} <= {f"-{name}" for name in known}:
        raise Refused(
            f"{_VARIABLE}={text!r} must be the guards that are switched off, separated by commas, each of "
            f"{', '.join(f'-{name}' for name in known)}"
        )
    return [name for name in known if f"-{name}" in given]


class Guards:
    """Tells each guard what happens, and returns the first sentence.

    Attributes:
        caveats: What the last line of the run says beside its proof.
    """

    def __init__(
        self,
        off: Iterable[str],
        members: Membership,
        gradients: Gradients,
        excused: Callable[[], bool],
    ) -> None:
        self._off = [*off]
        self.apart, self.loaded = Apart(members, gradients.weights), Loaded(members, gradients)
        self.unfinished, self.changed = Unfinished(gradients.turns, excused), Changed()
        every: list[Guard] = [
            self.apart,
            Unchanged(gradients),
            Replaced(gradients.weights),
            self.loaded,
            self.unfinished,
            Evaluated(gradients.open),
            Unsaved(gradients),
            Contents(),
            self.changed,
        ]
        gradients.weights.asked = any(map(self.has, (Apart, Unchanged, Replaced, Loaded)))
        self._on = [each for each in every if each.name not in self._off]
        self.caveats: list[str] = []
        self.say([f"guards off: {', '.join(self._off)}"] if self._off else [])

    @property
    def saved(self) -> tuple[Hash, ...]:
        """Hashes of weights that a state is saved with."""
        return self.loaded.saved if self.has(Loaded) else ()

    def load(self, state: State) -> None:
        """The run continues at a state."""
        forget(state.run)
        self.loaded.seek(state.weights)
        self.say(state.caveats)

    def has(self, guard: type[Guard]) -> bool:
        """Whether a guard is on."""
        return guard.name not in self._off

    def say(self, caveats: Iterable[str]) -> None:
        """Have the last line say something, once."""
        self.caveats += [each for each in dict.fromkeys(caveats) if each not in self.caveats]
        del self.caveats[_SAID:]

    def problem(self) -> str | None:
        """What is wrong at the beginning of an epoch, or once an optimizer has made its first step."""
        return next(filter(None, (each.problem() for each in self._on)), None)

    def closes(self, phase: str, epoch: str) -> str | None:
        """What is wrong with an epoch that is about to begin, to be proved, or to be saved as it is."""
        return next(filter(None, (each.closes(phase, epoch) for each in self._on)), None)

    def saves(self, objects: Objects) -> str | None:
        """What is wrong with a checkpoint of these objects."""
        return next(filter(None, (each.saves(objects) for each in self._on)), None)

    def ends(self) -> str | None:
        """What is wrong with the weights at the end of the run. It may add to the caveats."""
        for each in self._on:
            if sentence := each.ends():
                return sentence
            self.say(each.caveats)
        return None

    def tells(self, phase: str) -> dict[str, Any]:
        """What this rank tells the others at the end of an epoch that trains."""
        return {each.name: each.tells(phase) for each in self._on}

    def judges(self, epoch: str, told: list[dict[str, Any]]) -> str | None:
        """What is wrong by what all ranks have told. It may add to the caveats."""
        for guard in self._on:
            told_of_it = {rank: each[guard.name] for rank, each in enumerate(told) if guard.name in each}
            if sentence := guard.judges(epoch, told_of_it):
                return sentence
            self.say(guard.caveats)
        return None
