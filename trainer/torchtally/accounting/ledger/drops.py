"""What the program's collate_fn drops: known to all ranks while an epoch is in progress, so that a state has it.

Each rank knows what it has dropped itself, and a state is the same on every rank, without a collective call. The drops
therefore go through the job's store. A batch's are there before the loop has the batch: when a step is in the weights
of all ranks, so are the drops of all ranks in the store.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store

from torchtally import compat
from torchtally.accounting.ledger.tally import Run
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.line import text_problem

_COUNT = "count"
_SHOWN = 8  # dropped samples that a rank prints one by one in an epoch, and reasons that it counts


class Drops:
    """The dropped samples of an epoch in progress."""

    def __init__(self, run: Run, phase: str, epoch: int, carried: Digest, *, leads: bool = True):
        place = f"torchtally/dropped/{run.run}/{run.attempt}/{run.began}/{phase}/{epoch}"
        self._store: Store = PrefixStore(place, compat.default_store())
        self._read: list[tuple[int, Digest]] = []
        self._posted: list[str] = []  # keys of this rank
        self._carried, self._leads = carried, leads
        self._reasons: Counter[str] = Counter()
        self._name, self._rank = f"{phase} epoch {epoch}", run.rank

    def post(self, step: int, dropped: Digest) -> None:
        """Tell all ranks what this one drops in a step."""
        if self._leads:
            self._posted.append(str(self._store.add(_COUNT, 1)))
            self._store.set(self._posted[-1], f"{step} {digest.as_text(dropped.packed)}")

    def upto(self, step: int) -> Digest:
        """What all ranks have dropped in the steps up to `step`, and before."""
        for number in range(len(self._read) + 1, self._store.add(_COUNT, 0) + 1):
            posted, text = self._store.get(str(number)).decode().split()
            self._read.append((int(posted), digest.parse(text)))
        return sum((dropped for posted, dropped in self._read if posted <= step), self._carried)

    def say(self, where: str, dropped: Mapping[int, str]) -> None:
        """Print the first of the samples that this rank drops, and why."""
        for index, reason in dropped.items() if self._leads else ():
            if self._reasons.total() < _SHOWN:
                log.warning(f"{where}: the program drops sample {index}: {reason}")
            self._reasons[reason] += 1

    def end(self) -> None:
        """Print how many samples this rank has dropped since its start, and delete its keys, which no rank reads."""
        with contextlib.suppress(RuntimeError):  # the store may have ended with rank 0, which does not wait for others
            for key in self._posted:
                self._store.delete_key(key)
        if count := self._reasons.total():
            parts = [f"{number} {reason}" for reason, number in self._reasons.most_common(_SHOWN)]
            more = ", …" * (len(self._reasons) > _SHOWN)
            samples = f"{count} sample{'s' * (count > 1)}"
            log.warning(f"{self._name}: rank {self._rank} has dropped {samples}: {', '.join(parts)}{more}")


def check(dropped: Any, where: str) -> None:
    """Raise Refused if a batch cannot have these dropped samples."""
    of = f"{where}: the dropped samples of a Batch must be"
    if not isinstance(dropped, Mapping):
        raise Refused(f"{of} a mapping of index to reason, and are a {type(dropped).__name__}")
    for index, reason in dropped.items():
        if not isinstance(index, Integral) or isinstance(index, bool):
            raise Refused(f"{of} whole numbers, and one is {index!r}")
        if wrong := text_problem(f"reason of dropped sample {index}", reason):
            raise Refused(f"{where}: {wrong}")
