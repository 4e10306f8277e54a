"""An epoch whose steps leave nothing in the weights."""

from collections.abc import Mapping
from typing import Any

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.guards.steps import Steps


class Unchanged(Guard):
    """Says on the last line in which epochs no parameter has changed on any rank."""

    name = "unchanged"
    finds = (
        "An epoch in which no step changes a parameter: a learning rate of 0, gradients that are clipped to 0, no step "
        "at all, or a rollback of each. The last line says so"
    )
    costs = "A comparison of up to 3 parameters in the first step of an epoch. If they stay, a hash of all parameters"
    refuses = "None: the proof holds, and its last line names the epoch"

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def tells(self, phase: str) -> Any:
        return self._steps.is_unchanged(phase)

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        self.caveat = f"no parameter changed in {epoch}" if told and all(told.values()) else None
        return None
