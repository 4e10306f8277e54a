"""Weights that the steps of an epoch do not change, and weights that something else changes.

The proof would be of other weights than those that the program ends with.
"""

from collections.abc import Mapping
from typing import Any

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.accounting.ledger.weights import Weights
from torchtally.checkpoints.objects import Objects

_LEFT = (
    "the weights are not those that the last step has left: something has written to them since. Put them back, or, "
    "where that is meant, as for the best weights of a validation, say so after it: account.replaced(reason)"
)


class Unchanged(Guard):
    """Says on the last line in which epochs no parameter has changed on any rank."""

    name = "unchanged"

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def tells(self, phase: str) -> Any:
        return self._gradients.weights.is_unchanged(phase), *self._gradients.end(phase)

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        self.caveats = sorted({each for _, _, said in told.values() for each in said})
        numbers = sorted(set.intersection(*({*idle} for _, idle, _ in told.values()))) if told else []
        if told and all(unchanged for unchanged, *_ in told.values()):
            self.caveats = [*self.caveats, f"no parameter changed in {epoch}"]
        elif numbers:
            which = f"optimizer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
            self.caveats = [*self.caveats, f"{which} had gradients and made no step in {epoch}"]
        return None

    def ends(self) -> str | None:
        self.caveats = self._gradients.turns.repeated  # also after the last epoch
        return None


class Replaced(Guard):
    """Compares weights that are saved, or that the run ends with, with those that the last step has left."""

    name = "replaced"

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def tells(self, phase: str) -> Any:
        written, self._weights.written = self._weights.written, False
        return written

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        self.caveats = [f"the program has written to the weights before {epoch}"] * any(told.values())
        return None

    def saves(self, objects: Objects) -> str | None:
        return self.ends()

    def ends(self) -> str | None:
        judged = (each for each in self._weights.watched if each.fresh and each.lasts and each.replicated)
        judged = (each for each in judged if each.steps > 1)
        return None if self._weights.blind or all(each.is_as_left() for each in judged) else _LEFT
