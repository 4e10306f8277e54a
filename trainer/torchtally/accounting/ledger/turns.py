"""Which models batches train, in turn, and which optimizers: facts of steps that guards share."""

import weakref
from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.optimizer_gradients import Named

REPEATED = "batches of {} were trained by several steps"
ANEW = "from a batch of {} on, no step has trained the parameters of those before"
Trained = dict[int, "weakref.ref[Tensor]"]


class Turns:
    """The steps of one account's optimizers that have counted batches.

    Attributes:
        counts: How many they are.
        trained: The parameters of optimizers that have stepped with the gradients of a batch, by `id()`: another object
            once there are more.
    """

    def __init__(self) -> None:
        self.counts = 0
        self.trained: Trained = {}
        self._ended: defaultdict[str, int] = defaultdict(int)  # by phase: `counts` as its next epoch began
        self._models: dict[int, int] = {}  # of what is trained, by `id()`: numbers
        self._stepped: defaultdict[str, set[int]] = defaultdict(set)  # by phase: models that its batches have trained
        self._left: dict[str, set[int]] = {}  # by phase: those that were trained before another one took their place
        self._repeated: set[str] = set()  # phases of batches that an optimizer has stepped with again

    def begin(self, named: Named, batches: Iterable[Handed]) -> None:
        """An optimizer is about to step with the gradients of batches, perhaps after another one of its parameters."""
        self._repeated |= {each.epoch.phase for each in batches if named.models & each.models}

    def step(self, named: Named, batches: Iterable[Handed]) -> None:
        """An optimizer has stepped with the gradients of batches."""
        self.counts += 1
        named.stepped = self.counts
        named.models = named.models or self._models_of(named)
        for each in batches:
            self._take_turns(named, each)
            if named.number in each.users:
                self._repeated.add(each.epoch.phase)
            each.users |= {named.number}
            each.models |= named.models
            each.epoch.first = each.epoch.first or self.counts

    def end(self, phase: str, optimizers: list[Named], later: list[EpochInProgress]) -> tuple[list[int], list[str]]:
        """What steps have left out in an epoch, which ends, or done beside what counts; `later` ones are open.

        These are the numbers of optimizers that had gradients and made no step, and sentences.
        """
        first = next((each.first for each in later if each.first is not None), self.counts + 1)
        began, self._ended[phase] = self._ended[phase], first - 1
        stepped = {id(each) for named in optimizers if named.stepped > began for each in named.parameters}
        idle = [
            named.number
            for named in optimizers
            if phase in named.reached and not any(id(each) in stepped for each in named.parameters)
        ]
        for named in optimizers:
            named.reached.discard(phase)
        return idle, self.repeated + [ANEW.format(phase)] * bool(self._left.get(phase))

    @property
    def repeated(self) -> list[str]:
        """Sentences on the phases of batches that an optimizer has stepped with again."""
        return [REPEATED.format(each) for each in sorted(self._repeated)]

    def _models_of(self, named: Named) -> set[int]:
        """The models that an optimizer trains, from its first step on: one of its own, or those that others have."""
        own = {id(each): each for each in named.parameters}
        known = [at for at, each in own.items() if at in self.trained and self.trained[at]() is each]
        models = {self._models[at] for at in known} or {named.number}
        if added := own.keys() - known:
            self.trained = self.trained | {at: weakref.ref(own[at]) for at in added}
            self._models.update(dict.fromkeys(added, min(models)))
        return models

    def _take_turns(self, named: Named, batch: Handed) -> None:
        """Take note of the first batch that trains another model alone, and of one that trains one before it again."""
        phase = batch.epoch.phase
        stepped, left = self._stepped[phase], self._left.get(phase, set())
        if named.models & left:
            self._left[phase] = set()
        elif not (named.models & stepped or batch.users):
            self._left[phase] = {*stepped}
        stepped |= named.models
