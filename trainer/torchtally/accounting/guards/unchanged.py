"""An epoch whose steps leave nothing in the weights."""

from collections.abc import Mapping
from typing import Any

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.gradients import Gradients


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
