"""A guard finds what the ledger cannot know. Each has a name, by which the environment switches it off.

docs/reference/guards.md has what each finds, costs, and refuses although it is correct.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torchtally.checkpoints.objects import Objects


class Guard:
    """What a guard is told of a run, and answers: a sentence on what is wrong, or None.

    Attributes:
        name: What switches it off.
        caveats: What the last line says of the epoch that it has judged last.
    """

    name: ClassVar[str]
    caveats: Sequence[str] = ()

    def problem(self) -> str | None:
        """Before the first batch of an epoch, and once an optimizer has made its first step."""
        return None

    def closes(self, phase: str, epoch: str) -> str | None:
        """An epoch of a phase is about to begin, to be proved, or to be saved as it is."""
        return None

    def saves(self, objects: Objects) -> str | None:
        """A checkpoint is about to have these objects."""
        return None

    def tells(self, phase: str) -> Any:
        """What this rank tells the others at the end of an epoch of a phase, as JSON has it."""
        return None

    def judges(self, epoch: str, told: Mapping[int, Any]) -> str | None:
        """What all ranks have told, by their number among all."""
        return None

    def ends(self) -> str | None:
        """The run is about to have its last line, or a proof of the model's files."""
        return None
