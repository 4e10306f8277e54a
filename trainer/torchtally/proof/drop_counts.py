"""How many samples a program has dropped in each epoch of a phase, in run-length form.

The folded digest does not contain their sum, only Σ hᵉ · (number of epoch e). Both follow from the numbers.
"""

from typing import Annotated

from msgspec import Meta

from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.modular import P
from torchtally.proof.rules import MANY
from torchtally.proof.shards import Progression

# From epoch 1 on: a number of epochs, and the dropped samples of each of them.
Runs = tuple[tuple[Annotated[int, Meta(ge=1, le=MANY)], Annotated[int, Meta(ge=0, lt=P)]], ...]
STATED = 256  # maximum of runs in a line: together with the sizes of shard files, it stays under 16 KB
Stated = Annotated[
    Runs, Meta(min_length=1, max_length=STATED, description=f"a list of at most {STATED} [epochs, samples]")
]


class Accounted:
    """What a line of either format counts."""

    __slots__ = ()
    consumed: int
    digest: str
    dropped: int | None
    dropped_digest: str | None
    drawn_digest: str | None

    @property
    def consumed_digest(self) -> Digest:
        """The digest."""
        return digest.parse(self.digest)

    @property
    def accounted(self) -> int:
        """Samples that were consumed or dropped."""
        return self.consumed + (self.dropped or 0)

    @property
    def of_dropped(self) -> Digest:
        """The digest of what was dropped."""
        return digest.parse(self.dropped_digest) if self.dropped_digest else Digest()

    @property
    def of_drawn(self) -> Digest:
        """The digest of what samplers have drawn."""
        return digest.parse(self.drawn_digest) if self.drawn_digest else Digest()

    @property
    def accounted_digest(self) -> Digest:
        """The digest of what was consumed or dropped."""
        return self.consumed_digest + self.of_dropped


def extended(runs: Runs, samples: int) -> Runs:
    """The runs after one more epoch."""
    if runs and runs[-1][1] == samples:
        return (*runs[:-1], (runs[-1][0] + 1, samples))
    return (*runs, (1, samples))


def epochs(runs: Runs) -> int:
    """Number of epochs."""
    return sum(count for count, _ in runs)


def total(runs: Runs) -> int:
    """Dropped samples of all epochs."""
    return sum(count * samples for count, samples in runs)


def folded(runs: Runs, run: str) -> int:
    """The first number of the folded digest of the dropped samples: O(runs)."""
    h, first, together = digest.base_of_epochs(run), 0, 0
    for count, samples in runs:
        together += samples * digest.geometric(Progression(first, 1, count), h)
        first += count
    return together % P
