"""What a collate_fn makes of the samples of a step, and whether it is known which of them are in it.

Torch's own `default_collate` makes one row of each sample. Any other collate_fn shows where its batches count their
samples, as `sizes` finds it, returns a `Batch`, or is declared with `each_row`.

A batch is made in a worker, whose exceptions reach the loop with a traceback. An error is therefore returned.
"""

import copy
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils import data

from torchtally.accounting.batches.sizes import Copies, Sizes, copied, fields, parts
from torchtally.errors import Ending, Refused, Unproven
from torchtally.proof.permutation import Indices

Collate = Callable[[Any], Any]
Fetch = Callable[[list[int]], Any]  # the samples at these indices, as a collate_fn receives them


class Batch(NamedTuple):
    """The samples that one rank consumes in one step.

    Attributes:
        indices: Indices of the samples, int64 (samples,), on the CPU. A `collate_fn` can name them in a list as well.
        data: The samples as the `collate_fn` returned them.
        rows: Number of samples of all ranks in this step; 0 until `Account.epoch` yields the batch, which sets the
            following, too.
        phase: Name of the phase.
        step: Number of the step in its epoch, from 1, or from the position on where other ranks have resumed.
        steps: Number of the last step.
        dropped: Samples of the step that the `collate_fn` has left out on purpose, each with the reason. They count as
            dropped, and not as lost.
    """

    indices: Tensor
    data: Any
    rows: int = 0
    phase: str = ""
    step: int = 0
    steps: int = 0
    dropped: Mapping[int, str] = {}  # nobody changes it: a read-only mapping would not go through pipes


class Samples(list[Any]):
    """The samples that a collate_fn receives, with the list of their indices as the attribute `indices`."""

    def __init__(self, samples: list[Any], indices: list[int]):
        super().__init__(samples)
        self.indices = list(indices)  # a copy: a collate_fn may change it


class EachRow:
    """A collate_fn that `each_row` declares."""

    def __init__(self, collate: Collate):
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples)


def each_row(collate_fn: Collate) -> Collate:
    """Declare that a `collate_fn` makes exactly one row of each sample, in order, as those of Hugging Face do.

    All tensors and arrays in its batches must have as many rows as there are samples, and there must be at least one.
    They are looked for in mappings, lists, tuples, and dataclasses. Which sample is in which row is not checked.

    Args:
        collate_fn: A function of a list of samples. If the dataset's `__getitems__` returns something other than a
            list, the function receives that.
    """
    return EachRow(collate_fn)


class Collater:
    """Makes the batches of a step with a collate_fn, and finds out which samples are in them."""

    def __init__(self, collate: Collate):
        self.collate = collate
        self._known = is_known(collate)
        self._sizes = Sizes(self._untold)

    def make(self, fetched: Any, indices: list[int], fetch: Fetch) -> Any:
        """Return the data of `fetched`, the samples at `indices`. If it has others, a Batch names them.

        If it is not known which samples the data has, return the error. To find out, `fetch` reads samples again.
        """
        default, declared = self.collate is data.default_collate, isinstance(self.collate, EachRow)
        # Only a list has the samples as its items for certain: a dataset can fetch them at once in another form.
        listed = isinstance(fetched, list) and not declared
        if (default or listed) and len(fetched) != len(indices):
            much = f"returned {len(fetched)}, and must return one for each"
            return Unproven(f"for the {_few(indices)} the dataset's __getitems__ {much}")
        if not self._known:  # before the collate_fn changes the samples
            self._sizes.learn(len(indices), _copies(fetched, indices, fetch))
        made = self.collate(Samples(fetched, indices) if listed and not default else fetched)
        named: Any = indices
        dropped: Mapping[int, str] = {}
        if isinstance(made, Batch):
            named, made, dropped = made.indices, made.data, made.dropped
        elif problem := self._problem(made, indices, fetch):
            return problem
        if named is indices:
            return made
        array = whole(named)
        if array is None:
            return Refused(
                f"the indices that the collate_fn {_name(self.collate)} named in a Batch must be a list of integers"
            )
        # An array travels through a worker's pipe; a tensor would need shared memory.
        exact = array.tolist() == indices and not dropped
        return made if exact else Batch(array, made, dropped=dropped)  # type: ignore[arg-type]

    def none(self, fetch: Fetch, index: int) -> Any:
        """Return the data of 0 samples: what the collate_fn makes of the sample at `index`, cut to 0 rows.

        None if it drops that sample. If it cannot be cut, return the error: data with a sample in it would train what
        no tally has.
        """
        collate, batches = self.collate, []
        named = False
        for indices in ([index], [index, index]):
            fetched = fetch(indices)
            made = collate(Samples(fetched, indices) if isinstance(fetched, list) else fetched)
            if isinstance(made, Batch):
                if not len(made.indices) and made.dropped:
                    return None
                if len(made.indices) != len(indices):
                    return _uncut(collate, made.data)
                made, named = made.data, True
            batches.append(made)
        one, two = batches
        if not (named or self._known):
            self._sizes.learn(1, _read_again(fetch, [index]))
            if not self._sizes.known:
                return untold(collate, one)
        try:
            none = _cut(one, two)
        except _Whole:
            return _uncut(collate, one)
        sizes = _sizes(none)
        if named or self._known:
            empty = 0 in sizes | _lengths(none) and not (self._known and sizes - {0})
        else:
            empty = self._sizes.count_none(none)
        return none if empty else _uncut(collate, one)

    def _untold(self, samples: Any) -> Any:
        """What the collate_fn makes of samples, None if it names them."""
        made = self.collate(samples)
        return None if isinstance(made, Batch) else made

    def _problem(self, made: Any, indices: list[int], fetch: Fetch) -> Ending | None:
        """Why it is not known that `made` has all samples, each once."""
        if self._known:
            return wrong_sizes(self.collate, made, indices)
        if wrong := self._sizes.wrong(made, len(indices), _read_again(fetch, indices)):
            return _wrong(self.collate, wrong, indices)
        return None if self._sizes.known else untold(self.collate, made)


def _copies(fetched: Any, indices: list[int], fetch: Fetch) -> Copies:
    """Copies of the samples of a step, before the collate_fn has changed them."""
    if not isinstance(fetched, list):  # of all at once
        return _read_again(fetch, indices)
    return lambda number, times: Samples(copied(fetched[number], times), [indices[number]] * times)


def _read_again(fetch: Fetch, indices: list[int]) -> Copies:
    def copies(number: int, times: int) -> Any:
        index = indices[number]
        fetched = fetch([index])
        return _copies(fetched, [index], fetch)(0, times) if isinstance(fetched, list) else fetch([index] * times)

    return copies


def is_known(collate: Collate | None) -> bool:
    """Whether `collate` makes one row of each sample."""
    return collate is data.default_collate or isinstance(collate, EachRow)


def untold(collate: Collate, made: Any) -> Refused:
    """Return the error of a collate_fn that does not tell which samples are in `made`."""
    name = _name(collate)
    return Refused(
        f"the collate_fn {name} returned {_kind(made)}, which does not tell which samples are in it. It must return "
        "torchtally.Batch(indices, data) with the indices of these samples, from the attribute indices of the list "
        f"that it receives. If it makes one row of each sample, in order, pass torchtally.each_row({name}) instead"
    )


def wrong_sizes(collate: Collate, made: Any, indices: list[int]) -> Ending | None:
    """Return the error if the sizes in `made` contradict that it has one row of each sample."""
    sizes = _sizes(made)
    if sizes == {len(indices)} or (not sizes and not isinstance(collate, EachRow)):
        return None
    if not sizes:
        return Refused(
            f"the collate_fn {_name(collate)} in each_row returned {_kind(made)} without a tensor or an array that has "
            "rows to count: it must return torchtally.Batch(indices, data) instead"
        )
    return _wrong(collate, sizes, indices)


def _wrong(collate: Collate, sizes: Collection[int], indices: list[int]) -> Unproven:
    return Unproven(
        f"of the {_few(indices)} the collate_fn {_name(collate)} made parts of {', '.join(map(str, sorted(sizes)))} "
        "rows, and not one row of each. A collate_fn that leaves out, repeats, or packs samples must return "
        "torchtally.Batch(indices, data)"
    )


def whole(indices: Any) -> Indices | None:
    """Return the indices that a collate_fn named as an array; None if they are no list of integers."""
    array = indices.numpy(force=True) if isinstance(indices, Tensor) else np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        return None
    return array.astype(np.int64)


def _sizes(part: Any) -> set[int]:
    """Leading sizes of all tensors and arrays in a batch."""
    if isinstance(part, Tensor | np.ndarray):
        return set(part.shape[:1])  # len() of a tensor takes longer
    return set().union(*map(_sizes, parts(part).values()))


def _lengths(part: Any) -> set[int]:
    """Lengths of all lists and tuples in a batch."""
    own = {len(part)} if isinstance(part, list | tuple) else set()
    return own.union(*map(_lengths, parts(part).values()))


class _Whole(Exception):
    """A part of a batch is neither as long as there are samples nor the same for any number of them."""


def _cut(one: Any, two: Any) -> Any:
    """The batch of 0 samples, from the batches of 1 and 2: each part is cut by as much as it grew."""
    if type(one) is not type(two):
        raise _Whole
    if isinstance(one, Tensor | np.ndarray):
        grown = [axis for axis, sizes in enumerate(zip(one.shape, two.shape, strict=False)) if len({*sizes}) > 1]
        if one.ndim == two.ndim and len(grown) == 1:
            axis = grown[0]
            left = max(0, 2 * one.shape[axis] - two.shape[axis])
            return one[(*[slice(None)] * axis, slice(left))]
        if one.shape == two.shape and bool((one == two).all()):
            return one
    elif isinstance(one, MutableMapping):
        if one.keys() == two.keys():
            none = copy.copy(one)
            none.update({key: _cut(one[key], two[key]) for key in one})
            return none
    elif isinstance(one, list | tuple):
        if len(one) != len(two):
            return one[: max(0, 2 * len(one) - len(two))]
        cut = list(map(_cut, one, two))
        return type(one)(*cut) if hasattr(one, "_fields") else type(one)(cut)
    elif names := fields(one):
        none = copy.copy(one)
        for name in names:
            object.__setattr__(none, name, _cut(getattr(one, name), getattr(two, name)))
        return none
    elif one is two or (isinstance(one, str | bytes | int | float) and one == two):
        return one
    raise _Whole


def _uncut(collate: Collate, made: Any) -> Refused:
    return Refused(
        f"this rank has no sample left in the last step, and the {type(made).__name__} of the collate_fn "
        f"{_name(collate)} cannot be cut to 0 rows: use contract padded or drop_last"
    )


def _name(collate: Collate) -> str:
    wrapped = collate.collate if isinstance(collate, EachRow) else collate
    return getattr(wrapped, "__name__", type(wrapped).__name__)


def _kind(made: Any) -> str:
    name = type(made).__name__
    return "None" if made is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _few(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{len(indices)} samples {shown}{', …' if len(indices) > 8 else ''}"
