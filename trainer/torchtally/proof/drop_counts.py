"""How many samples a program has dropped in each epoch of a phase, in run-length form.

The folded digest does not contain their sum, only Σ hᵉ · (number of epoch e). Both follow from the numbers.
"""

from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.integers import are_in
from torchtally.proof.modular import P
from torchtally.proof.rules import MANY, Values
from torchtally.proof.shards import Progression

Runs = tuple[tuple[int, int], ...]  # from epoch 1 on: a number of epochs, and the dropped samples of each of them
_RUN = range(1, MANY + 1), range(P)
STATED = 256  # maximum of runs in a line: together with the sizes of shard files, it stays under 16 KB


class Accounted:
    """What a line of either format counts."""

    __slots__ = ()
    consumed: int
    digest: bytes
    dropped: int | None
    dropped_digest: bytes | None
    drawn_digest: bytes | None

    @property
    def consumed_digest(self) -> Digest:
        """The digest, unpacked."""
        return digest.unpack(self.digest)

    @property
    def accounted(self) -> int:
        """Samples that were consumed or dropped."""
        return self.consumed + (self.dropped or 0)

    @property
    def of_dropped(self) -> Digest:
        """The digest of what was dropped, unpacked."""
        return digest.unpack(self.dropped_digest) if self.dropped_digest else Digest()

    @property
    def of_drawn(self) -> Digest:
        """The digest of what samplers have drawn, unpacked."""
        return digest.unpack(self.drawn_digest) if self.drawn_digest else Digest()

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


def in_epochs(line: Values, name: str) -> Runs:
    """The rule for a field of runs."""
    value = line.values.get(name)
    if isinstance(value, list) and 0 < len(value) <= STATED and all(are_in(each, *_RUN) for each in value):
        return tuple((count, samples) for count, samples in value)
    raise line.bad(name, f"a list of at most {STATED} [epochs, samples]")
