"""The program's own sampler, which is asked once for each epoch."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils import data

from torchtally.accounting import randomness
from torchtally.accounting.order.sampler import Sampler
from torchtally.errors import Refused, whole
from torchtally.proof.permutation import Indices

_ENDLESS = 1 << 24  # samples of an epoch, or 64 times those of the dataset: a sampler that draws more never ends


class Source:
    """A sampler of the program in this process.

    It must depend on its seed, on the epoch, and on the number of epochs that it has drawn alone. `set_epoch` is called
    where it has that, and the generators of torch, NumPy and Python are seeded for each draw, the same on all ranks.
    """

    def __init__(self, n: int, batches: Iterable[Any], seed: int):
        self.n, self.batches, self._seed = n, batches, seed
        self._epoch = 0  # that was drawn last
        self._last: list[Indices] = []

    def draw(self, epoch: int) -> list[Indices]:
        """The batches of an epoch. Raises ValueError that says what is wrong with them."""
        settable = [each for each in _within(self.batches) if hasattr(each, "set_epoch")]
        while self._epoch < epoch:
            # Without set_epoch, a sampler can depend on how often it was asked.
            self._epoch = epoch if settable else self._epoch + 1
            for each in settable:
                each.set_epoch(epoch)
            with randomness.kept():
                randomness.reseed(randomness.mixed(self._seed, self._epoch))
                self._last = [*self._checked()]
        return self._last

    def _checked(self) -> Iterator[Indices]:
        drawn, most = 0, max(_ENDLESS, 64 * self.n)
        for batch in self.batches:
            try:
                indices = np.fromiter(map(operator.index, batch), np.int64)
            except (TypeError, OverflowError):
                raise ValueError(f"yields {batch!r:.60}, and a batch must have indices of the dataset") from None
            if not len(indices):
                raise ValueError("yields a batch without a sample")
            if outside := indices[(indices < 0) | (indices >= self.n)].tolist():
                raise ValueError(f"draws the index {outside[0]}, and the dataset has the indices 0 to {self.n - 1}")
            drawn += len(indices)
            if drawn > most:
                raise ValueError(
                    f"draws more than {most} samples in an epoch, and must end its epochs: of one without an end, pass "
                    "the part that the run trains, such as [*itertools.islice(sampler, 100_000)], with epochs=1 and "
                    'contract="as_drawn"'
                )
            yield indices


def batches_of(sampler: Any, batch_sampler: Any, batch_size: int | None, drop_last: bool) -> Iterable[list[int]] | None:
    """The batches of the program's own sampler, as a DataLoader takes it; None without one. Raises Refused."""
    if sampler is None and batch_sampler is None:
        return None
    if sampler is not None and batch_sampler is not None:
        raise Refused("account.loader() takes sampler= or batch_sampler=, and not both")
    for name, each, what in (("sampler", sampler, "indices"), ("batch_sampler", batch_sampler, "lists of indices")):
        if each is not None and not isinstance(each, Iterable):
            raise Refused(f"{name}={each!r} must yield {what}")
        if any(isinstance(inside, Sampler) for inside in _within(each)):
            raise Refused(
                f"account.loader(): {name} must be of your own, and has what account.sampler() returned: leave it out, "
                "as account.loader() makes that itself"
            )
    if batch_sampler is None:
        return data.BatchSampler(sampler, whole("batch_size", batch_size), drop_last)
    if batch_size is not None:
        raise Refused(f"batch_size={batch_size!r} must be left out, as batch_sampler makes the batches")
    if drop_last:
        raise Refused("drop_last=True must be left out, as batch_sampler makes the batches")
    batches: Iterable[list[int]] = batch_sampler
    return batches


def of_another_sampler(phase: object, n: object, others: Mapping[str, Any]) -> str:
    """The sentence on arguments of `Account.sampler` that are in the form of another sampler's."""
    given = {**others, **({} if type(phase) is str else {"phase": phase}), **({} if type(n) is int else {"n": n})}
    name, value = next(iter(given.items()))
    wrong = f"{name}={value!r}" if isinstance(value, int | str | None) else f"a {type(value).__name__} as {name}"
    return (
        f"account.sampler() does not take {wrong}: it takes a phase and its number of samples, such as "
        'account.sampler("train", len(dataset), batch_size=32), and the account knows ranks and seed'
    )


def _within(sampler: Any) -> list[Any]:
    """A sampler and those in it, by the names that torch gives them."""
    known: list[Any] = [sampler]
    for each in known:
        inner = (getattr(each, name, None) for name in ("sampler", "batch_sampler"))
        known += [inside for inside in inner if inside is not None and all(inside is not other for other in known)]
    return known
