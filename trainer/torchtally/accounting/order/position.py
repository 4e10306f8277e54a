"""How far an epoch is made, as a state has it."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from torchtally.proof import digest, rules

Whole = Annotated[int, Meta(ge=0)]
Epochs = Annotated[int, Meta(ge=0, le=rules.MANY)]
Packed = Annotated[bytes, Meta(min_length=8 * digest.WORDS, max_length=8 * digest.WORDS)]  # a digest
Drawn = tuple[Whole, Whole]  # samples of all ranks in the steps up to one, and a hash of them and their places


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far an epoch's order is consumed: `steps` steps of `batch` samples by `world` ranks, from `start` on.

    In an order that is drawn, `start` is a number of batches, and `batch` the size of the largest step.
    """

    epoch: Epochs
    start: Whole
    steps: Whole
    batch: Annotated[int, Meta(ge=1)]  # samples a step, of all ranks together
    world: Annotated[int, Meta(ge=1, le=rules.MANY)]
    dropped: Packed | None = None  # digest of what the program has dropped in the epoch so far
    drawn: Drawn | None = None  # of the steps, in an order that is drawn

    @property
    def consumed(self) -> int:
        """Samples of the order that all ranks have consumed, as if it had no end."""
        if self.drawn is not None:
            return self.drawn[0]
        return self.start + self.steps * self.batch
