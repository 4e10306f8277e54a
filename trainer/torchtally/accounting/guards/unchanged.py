"""An epoch whose steps leave nothing in the weights."""

from collections.abc import Callable, Mapping
from typing import Any

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.guards.steps import Steps


class Unchanged(Guard):
    """Says on the last line in which epochs no parameter has changed on any rank."""

    name = "unchanged"
    finds = (
        "An epoch in which no step changes a parameter: a learning rate of 0, gradients that are clipped to 0, no step "
        "at all, or a rollback of each; an optimizer that has gradients in an epoch, and makes no step. The last line "
        "says so"
    )
    costs = "A comparison of up to 3 parameters in the first step of an epoch. If they stay, a hash of all parameters"
    refuses = "None: the proof holds, and its last line names the epoch"

    def __init__(self, steps: Steps, idle: Callable[[str], list[int]]) -> None:
        self._steps, self._idle = steps, idle

    def tells(self, phase: str) -> Any:
        return self._steps.is_unchanged(phase), self._idle(phase)

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        numbers = sorted(set.intersection(*({*idle} for _, idle in told.values()))) if told else []
        changed = not told or not all(unchanged for unchanged, _ in told.values())
        self.caveat = None if changed else f"no parameter changed in {epoch}"
        if numbers and not self.caveat:
            which = f"optimizer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
            self.caveat = f"{which} had gradients and made no step in {epoch}"
        return None
