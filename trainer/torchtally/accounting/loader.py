"""The loader of a phase: what any DataLoader yields, one epoch after another."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchtally import compat
from torchtally.accounting.batches.step_loader import StepLoader, Taken
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.order.sampler import Sampler
from torchtally.errors import Refused

if TYPE_CHECKING:
    from torchtally.accounting.account import Account


class _Pass(Iterator[Any]):
    """One iteration of a loader, which has its length as that of a DataLoader has."""

    def __init__(self, loader: "Loader", batches: Iterator[Any]):
        self._loader, self._batches = loader, batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)


class Loader:
    """The data of a phase: each `iter()` is its next epoch. `Account.loader` and `Account.batches` return it.

    Its length is the number of batches of a whole epoch: of the last one, if a sampler of the program's own draws them.
    The epoch in progress of a loaded state has only the batches that are left. A library that stops after the last
    batch does not ask for the next one, which would count the last of a phase that does not train. The next `iter()` or
    `end()` counts it.

    It is `Stateful`, as the loaders of torchdata are: its state is the account's.

    Attributes:
        account: The account that counts the batches.
        phase: Name of the phase.
        given: The DataLoader, or what else has the batches.
        all_taken: Whether the batch that was taken last is the last of its epoch.

    Args:
        handed: Begins the next epoch, and yields its batches.
        trains: Whether the samples go into the weights. Otherwise, an epoch that is left at its last batch is held, to
            count that batch.
    """

    def __init__(
        self,
        account: "Account",
        phase: str,
        given: Iterable[Any],
        handed: Callable[[], Iterator[Handed | Taken]],
        trains: bool,
    ):
        self.account, self.phase, self.given, self._handed, self._trains = account, phase, given, handed, trains
        self._batches: Iterator[Handed | Taken] = iter(())
        self.all_taken = False

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self, self._data())

    def _data(self) -> Iterator[Any]:
        self.end()
        batches = self._handed()
        if not self._trains:
            self._batches = batches
        for each in batches:
            self.all_taken = each.is_last
            yield each.data

    def __len__(self) -> int:
        return self.account.samplers[self.phase].part().steps

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self.given.source if isinstance(self.given, StepLoader) else getattr(self.given, "dataset", None)

    @property
    def sampler(self) -> Any:
        """This rank's part of an epoch's order, or the program's own sampler."""
        found = self.account.samplers[self.phase]
        return found if isinstance(found, Sampler) else getattr(found.batches, "sampler", found.batches)

    @property
    def batch_sampler(self) -> Iterable[list[int]]:
        """The same in batches."""
        return self.account.samplers[self.phase].batches

    @property
    def batch_size(self) -> int | None:
        """Samples of this rank in a step; None with a batch_sampler of the program's own."""
        return self.account.samplers[self.phase].batch_size

    @property
    def num_workers(self) -> int:
        """Worker processes of the DataLoader."""
        return getattr(self.given, "num_workers", 0)

    @property
    def skipped(self) -> int:
        """Number of batches that the next `iter()` leaves out, as a loaded state has them."""
        return self.account.skipped(self.phase)

    def optimizer_steps(self, accumulated: int) -> int:
        """Number of optimizer steps of the plan if each takes so many batches, or what is left of an epoch.

        Raises:
            Refused: The plan ends in the middle of an epoch and of a step, which libraries do not make there.
        """
        batches = [self.account.steps(self.phase, epoch) for epoch in range(1, self.account.plan[self.phase] + 1)]
        steps = sum(math.ceil(each / accumulated) for each in batches)
        if batches and batches[-1] < len(self) and (rest := batches[-1] % accumulated):
            begun = self.account.completed(self.phase) or self.skipped
            works = "continue with the number of ranks, the batch size, and the accumulation of the beginning"
            raise Refused(
                f"the plan of {self.phase} ends after {batches[-1]} of the {len(self)} batches of an epoch, and the "
                f"library makes no step of the last {rest}, as it accumulates {accumulated}: "
                f"{works if begun else f'plan {self._of_steps(steps, accumulated)}'}"
            )
        return steps

    def plan_of_steps(self, steps: int, accumulated: int) -> str:
        """Return the end of a sentence that names the plan of a library's own number of steps, "" if it has none."""
        return f"; or plan {self._of_steps(steps, accumulated)}" if steps > 0 else ""

    def _of_steps(self, steps: int, accumulated: int) -> str:
        more = f", accumulate={accumulated}" if accumulated > 1 else ""
        return f'{{"{self.phase}": Steps({steps}{more})}}'

    def state_dict(self) -> dict[str, str]:
        """Return `Account.position_dict()`: some libraries ask in each step."""
        return self.account.position_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Call `Account.load_state_dict(state)`."""
        self.account.load_state_dict(state)

    def end(self) -> None:
        """End the epoch: count the last batch if the library has taken all of them."""
        if self.all_taken:
            self.all_taken = False
            next(self._batches, None)

    def leave(self) -> None:
        """Leave the epoch where the library has failed: the batch that it took last does not count."""
        self.all_taken = False

    def close(self) -> None:
        """End the workers that outlive an epoch: an account and its loaders know each other, so nothing else does."""
        if isinstance(self.given, StepLoader):
            compat.end_workers(self.given)
