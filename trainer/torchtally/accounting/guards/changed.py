"""A dataset that changes while its loader lives: an index then names another sample."""

from typing import Any

from torchtally.accounting.data.facts import Facts
from torchtally.accounting.guards.guard import Guard


class Changed(Guard):
    """Compares what a dataset says of itself with what it said when its loader was made."""

    name = "changed"

    def __init__(self) -> None:
        self._facts: dict[str, tuple[Any, Facts]] = {}

    def note(self, phase: str, dataset: Any) -> None:
        """The loader of a phase is made."""
        self._facts[phase] = dataset, Facts.of(dataset)

    def closes(self, phase: str, epoch: str) -> str | None:
        if phase not in self._facts:
            return None
        dataset, facts = self._facts[phase]
        changed = facts.changed(dataset)
        return changed and f"{phase}: {changed}"
