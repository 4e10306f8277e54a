"""A collate_fn either has known rows or says which it has. A parameter counts what is trained, beside the tally.

Each sample adds 1 to its own row of the parameter. At the end, each row is the number of epochs if none was lost.
"""

import re
from collections import UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from accounts import assert_ends, in_turn
from mixtures import Numbers
from torch import Tensor, nn
from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate
from transformers import BatchEncoding
from witness import Counts

from torchtally import Account, Batch, each_row
from torchtally.accounting.batches.step_loader import ByStep, StepLoader
from torchtally.accounting.order.sampler import Sampler
from torchtally.errors import Refused, Unproven
from torchtally.proof.contract import Contract

EPOCHS = 2


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index, index


class Columns(Numbers):
    """Fetches a batch at once, as a tensor."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices)


def trained(
    dataset: Any, size: int, collate: Any, read: Callable[[Any], Any], contract: Contract, options: dict[str, Any]
) -> list[int]:
    counts = Counts(len(dataset))
    with Account(task="t", plan={"train": EPOCHS}) as account:
        source = account.loader(dataset, "train", batch_size=size, collate_fn=collate, contract=contract, **options)
        for epoch in range(1, EPOCHS + 1):
            for batch in account.epoch("train", epoch, source):
                counts.step(read(batch.data))
                account.commit()
    return counts.times


def assert_proved(
    subtests: pytest.Subtests, cases: Iterable[tuple[Any, Any, Callable[[Any], Any]]], **workers: Any
) -> None:
    """Of a dataset with a collate_fn and what reads its batches, each of 9 samples is trained once in each epoch.

    So it is with workers and without. Two ranks have two in a step: in the last one, one rank has none.
    """
    each = [(*case, options) for case in cases for options in ({}, {"num_workers": 2, **workers})]
    turns = in_turn(
        2, [(trained, dataset, 2, collate, read, "exact", options) for dataset, collate, read, options in each]
    )
    for case, of_ranks in zip(each, turns, strict=True):
        for found in of_ranks:
            with subtests.test(str(case)):
                assert (found["code"], found["result"]) == (0, [EPOCHS] * 9), found["err"]


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * part for part in super().__getitem__(index))


@pytest.mark.parametrize("kind", [TensorDataset, Doubled])
def test_a_dataset_of_tensors_gives_the_batches_that_its_samples_make(kind: type[TensorDataset]) -> None:
    dataset = kind(torch.rand(9, 3), torch.arange(9), torch.rand(9, 2, 2, dtype=torch.float64))
    for indices in ([4, 0, 8], [2]):
        number, made = ByStep(dataset, len(dataset), default_collate)[7, 0, indices, None]
        expected = default_collate([dataset[index] for index in indices])
        assert (number, type(made), len(made)) == (7, type(expected), len(expected))
        for part, other in zip(made, expected, strict=True):
            assert part.dtype == other.dtype
            assert torch.equal(part, other)


# A collate_fn that says nothing of its samples.


def first(samples: list[int]) -> list[int]:
    """What a collate_fn keeps that drops the half of a batch."""
    return samples[: -(-len(samples) // 2)]


def of_two(samples: list[int]) -> Any:
    return torch.tensor(first(samples)), torch.tensor(first(samples))


def of_three(samples: list[int]) -> Any:
    kept = torch.tensor(first(samples))
    return kept, kept, kept


def with_classes(samples: list[int]) -> Any:
    return {"index": torch.tensor(samples[:1]), "classes": ["cat", "dog", "cow", "hen"]}


def nothing(samples: list[int]) -> None:
    return None


class Opaque:
    def __init__(self, samples: list[int]):
        self.samples = first(samples)


def read_first(data: Any) -> Any:
    return data[0]


def read_index(data: Any) -> Any:
    return data["index"]


def read_nothing(data: Any) -> Any:
    return []


def read_samples(data: Any) -> Any:
    return data.samples


def itself(data: Any) -> Any:
    return data


UNTOLD = [
    (of_two, 2, read_first, "of_two returned a tuple"),
    (of_three, 3, read_first, "of_three returned a tuple"),
    (with_classes, 4, read_index, "with_classes returned a dict"),
    (nothing, 4, read_nothing, "nothing returned None"),
    (Opaque, 4, read_samples, "Opaque returned an Opaque"),
]


def test_a_collate_fn_that_does_not_tell_is_refused_at_the_first_batch(subtests: pytest.Subtests) -> None:
    each = [(*case, workers) for case in UNTOLD for workers in (0, 2)]
    cases = [
        (trained, Numbers(96), size, how, read, "exact", {"num_workers": many}) for how, size, read, _, many in each
    ]
    for (collate, _, _, sentence, workers), [found] in zip(each, in_turn(1, cases), strict=True):
        with subtests.test(f"{collate.__name__}, {workers} workers"):
            assert found["code"] == 2, found["result"]
            assert f"the collate_fn {sentence}" in found["err"]
            assert "torchtally.Batch(indices, data)" in found["err"]
            assert f"torchtally.each_row({collate.__name__})" in found["err"]
            assert "the ranks compared only its length" in found["err"].splitlines()[0]
            assert found["err"].count("\n") == 2


# A collate_fn whose batches show how many samples they have.


class Held:
    """As libraries hold a batch."""


class Rows(Numbers):
    """Samples of another size each, in a dictionary of the dataset's own."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "row": torch.full((index % 5 + 1,), index)}


def of_targets(pairs: list[tuple[int, int]]) -> Any:
    return tuple(zip(*pairs, strict=True))


def of_lists(samples: list[int]) -> Any:
    return {"index": [*samples], "classes": ["cat", "dog"]}


def sequence_first(rows: list[Any]) -> Any:
    return nn.utils.rnn.pad_sequence([row["row"] for row in rows])


def of_graphs(rows: list[Any]) -> Any:
    nodes = torch.cat([row["row"] for row in rows])
    return {
        "nodes": nodes,
        "edges": torch.zeros(2, 4 * len(nodes)),
        "index": torch.tensor([row["index"] for row in rows]),
    }


def that_pops(rows: list[Any]) -> Any:
    index = torch.tensor([row.pop("index") for row in rows])
    return {"index": index, "row": nn.utils.rnn.pad_sequence([row.pop("row") for row in rows], batch_first=True)}


def of_two_views(samples: list[int]) -> Any:
    return torch.tensor([*samples, *samples])


def as_object(rows: list[Any]) -> Any:
    made = Held()
    vars(made).update(tokens=torch.cat([row["row"] for row in rows]), index=[row["index"] for row in rows])
    return made


def of_even_numbers(samples: list[int]) -> Any:
    assert len(samples) % 2 == 0
    return torch.tensor(samples)


SHOWN: list[tuple[Any, Any, Callable[[Any], Any]]] = [
    (Numbers, itself, itself),
    (Pairs, of_targets, read_first),
    (Numbers, of_lists, read_index),
    (Rows, sequence_first, read_first),
    (Rows, of_graphs, read_index),
    (Rows, that_pops, read_index),
]


def test_a_batch_that_shows_its_samples_counts_in_an_empty_batch_as_well(subtests: pytest.Subtests) -> None:
    assert_proved(subtests, ((dataset(9), collate, read) for dataset, collate, read in SHOWN))


def batches_of(dataset: Any, size: int, collate: Any) -> list[Any]:
    sampler = Sampler(len(dataset), batch_size=size, shuffle=False, rank=0, world=1)
    return [batch.data for batch in StepLoader(dataset, sampler, collate)]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("dataset", "collate"),
    [*[each[:2] for each in SHOWN], (Numbers, of_two_views), (Rows, as_object)],
)
def test_a_batch_of_any_size_shows_its_samples(dataset: Any, collate: Any, size: int) -> None:
    assert len(batches_of(dataset(24), size, collate)) == 24 // size


class Growing(Rows):
    """The first samples are of one size."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "row": torch.full((index // 8 + 1,), index)}


def that_pops_graphs(rows: list[Any]) -> Any:
    index = torch.tensor([row.pop("index") for row in rows])
    return index, torch.cat([row.pop("row") for row in rows])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("collate", [of_graphs, that_pops_graphs])
def test_what_is_in_the_samples_is_told_from_samples_once_it_differs(collate: Any, size: int) -> None:
    assert len(batches_of(Growing(24), size, collate)) == 24 // size


def test_a_collate_fn_that_takes_even_numbers_alone_shows_its_samples() -> None:
    assert batches_of(Numbers(8), 4, of_even_numbers)[1].tolist() == [4, 5, 6, 7]


def test_copies_are_made_of_the_first_samples_alone() -> None:
    sizes: list[int] = []

    def counted(samples: list[int]) -> Any:
        sizes.append(len(samples))
        return torch.tensor(samples)

    batches_of(Numbers(18), 3, counted)
    assert sizes == [2, 4, 2, 4, 2, 4, 3, 2, 4, 3, 3, 3, 3, 3]


def test_what_the_loop_draws_does_not_change_where_a_collate_fn_is_asked_for_copies() -> None:
    def draws(samples: list[int]) -> Any:
        return torch.tensor(samples) + torch.rand(len(samples))

    drawn = [[each.tolist() for each in batches_of(Numbers(8), 4, kind)] for kind in (draws, each_row(draws))]
    assert drawn[0] == drawn[1]


class Holed(Rows):
    """Samples some of which cannot be read."""

    def __getitem__(self, index: int) -> Any:
        return None if index in (0, 13, 21) else super().__getitem__(index)


def readable(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row is not None]


def default_of_readable(rows: list[Any]) -> Any:
    return default_collate([row["index"] for row in readable(rows)])


def readable_as_wide_as_a_batch(rows: list[Any]) -> Any:
    return torch.zeros(len(readable(rows)), 8)


def readable_as_long_as_a_batch(rows: list[Any]) -> Any:
    return torch.zeros(8, len(readable(rows)))


def readable_graphs(rows: list[Any]) -> Any:
    return of_graphs(readable(rows))


def readable_with_all_names(rows: list[Any]) -> Any:
    return [str(each) for each in range(len(rows))], [row["row"] for row in readable(rows)]


def readable_or_nothing(rows: list[Any]) -> Any:
    return default_of_readable(rows) if readable(rows) else None


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize(
    "collate",
    [
        readable,
        default_of_readable,
        readable_as_wide_as_a_batch,
        readable_as_long_as_a_batch,
        readable_graphs,
        readable_with_all_names,
        readable_or_nothing,
    ],
)
@pytest.mark.parametrize("first", [0, 8])
def test_samples_that_a_collate_fn_leaves_out_are_missed(collate: Any, size: int, first: int) -> None:
    """In the first batch, or in a later one."""
    with pytest.raises((Refused, Unproven, IndexError, ValueError)):  # torch takes no list of nothing
        batches_of(data.Subset(Holed(24), range(first, 24)), size, collate)


def test_samples_that_a_collate_fn_leaves_out_are_named() -> None:
    dataset = data.Subset(Holed(24), range(8, 24))
    with pytest.raises(
        Unproven, match="of the 4 samples 4, 5, 6, 7 the collate_fn readable_graphs made parts of 3 rows"
    ):
        batches_of(dataset, 4, readable_graphs)


def tokens_alone(rows: list[Any]) -> Any:
    return torch.cat([row["row"] for row in rows])


def test_a_collate_fn_that_packs_is_refused() -> None:
    with pytest.raises(Refused, match="the collate_fn tokens_alone returned a Tensor, which does not tell"):
        batches_of(Rows(24), 8, tokens_alone)


# A collate_fn that makes one row of each sample, and says so.


@dataclass
class Data:
    index: Tensor
    names: list[str]


def as_dict(samples: list[int]) -> Any:
    return {"index": torch.tensor(samples), "classes": ["cat", "dog"], "count": torch.tensor(7), "none": None}


def as_user_dict(samples: list[int]) -> Any:
    return UserDict(index=np.array(samples))


def as_encoding(samples: list[int]) -> Any:
    return BatchEncoding({"index": torch.tensor(samples), "nested": [{"also": torch.tensor(samples)}]})


def as_data(samples: list[int]) -> Any:
    return Data(torch.tensor(samples), [str(each) for each in samples])


def as_tuple(samples: list[int]) -> Any:
    return [str(each) for each in samples], torch.tensor(samples)


def read_second(data: Any) -> Any:
    return data[1]


def read_data(data: Any) -> Any:
    assert len(data.names) == len(data.index)
    return data.index


def read_strings(data: Any) -> Any:
    return [int(each) for each in data["name"]]


class Named(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"name": str(index)}


TOLD = [
    (Numbers(9), None, itself),
    (Numbers(9), default_collate, itself),
    (Numbers(9), each_row(default_collate), itself),
    (Named(9), None, read_strings),
    (Numbers(9), each_row(as_dict), read_index),
    (Numbers(9), each_row(as_user_dict), read_index),
    (Numbers(9), each_row(as_encoding), read_index),
    (Numbers(9), each_row(as_data), read_data),
    (Numbers(9), each_row(as_tuple), read_second),
    (Columns(9), each_row(itself), itself),
]


def test_a_row_of_each_sample_counts_in_an_empty_batch_as_well(subtests: pytest.Subtests) -> None:
    assert_proved(subtests, TOLD, persistent_workers=True, pin_memory=True)


def dropping(samples: list[int]) -> Any:
    return as_dict([each for each in samples if each != 4])


def repeating(samples: list[int]) -> Any:
    return as_dict([*samples, *[each for each in samples if each == 4]])


def uneven(samples: list[int]) -> Any:
    return {"index": torch.tensor(samples), "packed": torch.zeros(1, 100)}


def constant(samples: list[int]) -> Any:
    return {"count": torch.tensor(7), "names": ["a"] * len(samples)}


BROKEN: list[tuple[Any, int, str]] = [
    (dropping, 3, "made parts of 6 rows, and not one row of each"),
    (repeating, 3, "made parts of 8 rows, and not one row of each"),
    (uneven, 3, "made parts of 1, 7 rows, and not one row of each"),
    (constant, 2, "the collate_fn constant in each_row returned a dict without a tensor or an array"),
    (Opaque, 2, "the collate_fn Opaque in each_row returned an Opaque without"),
]


def test_a_row_of_each_sample_is_a_promise_whose_sizes_are_checked(subtests: pytest.Subtests) -> None:
    each = [(*case, workers) for case in BROKEN for workers in (0, 2)]
    cases = [(trained, Numbers(49), 7, each_row(how), read_index, "exact", {"num_workers": n}) for how, _, _, n in each]
    for (collate, code, sentence, workers), [found] in zip(each, in_turn(1, cases), strict=True):
        with subtests.test(f"{collate.__name__}, {workers} workers"):
            assert found["code"] == code
            assert sentence in found["err"]
            assert "torchtally.Batch(indices, data)" in found["err"]
            assert "Traceback" not in found["err"]
            if collate in (dropping, repeating):
                assert "4" in re.split("[ ,]+", found["err"].partition("7 samples ")[2])


# A collate_fn that names its samples.


def packing(samples: Any) -> Batch:
    assert isinstance(samples, list) and samples.indices == samples  # as Numbers are
    tokens = torch.tensor([each for each in samples for _ in range(each % 3)], dtype=torch.int64)
    return Batch(samples.indices, {"index": torch.tensor(samples), "tokens": tokens})  # type: ignore[arg-type]


def naming_a_tensor(samples: Any) -> Batch:
    return Batch(torch.tensor(samples.indices), as_dict(samples))


def test_a_batch_that_names_its_samples_counts_in_an_empty_batch_as_well(subtests: pytest.Subtests) -> None:
    assert_proved(subtests, [(Numbers(9), collate, read_index) for collate in (packing, naming_a_tensor)])


def fewer(samples: Any) -> Batch:
    kept = [index for index in samples.indices if index != 4]
    return Batch(torch.tensor(kept), as_dict(kept))


def fewer_in_place(samples: Any) -> Batch:
    if 4 in samples:
        samples.indices.remove(4)
    return Batch(samples.indices, as_dict(samples.indices))


def repeated(samples: Any) -> Batch:
    named = [*samples.indices, *[index for index in samples.indices if index == 4]]
    return Batch(torch.tensor(named), as_dict(named))


def foreign(samples: Any) -> Batch:
    named = [index - (index == 4) for index in samples.indices]
    return Batch(torch.tensor(named), as_dict(named))


def test_a_batch_that_names_other_samples_than_the_steps_is_not_proved(subtests: pytest.Subtests) -> None:
    each = [(collate, {"num_workers": n}) for collate in (fewer, fewer_in_place, repeated, foreign) for n in (0, 2)]
    assert_ends(subtests, 1, [((trained, Numbers(49), 7, how, read_index, "exact", more), 3, "") for how, more in each])


@pytest.mark.parametrize("indices", [[0.0, 1.0], [True, False], [[0, 1]], ["0", "1"], None, torch.zeros(2)], ids=str)
def test_names_of_samples_are_integers(indices: Any) -> None:
    def collate(samples: Any) -> Batch:
        return Batch(indices, as_dict(samples))

    with pytest.raises(Refused, match="the collate_fn collate named in a Batch must be a list of integers"):
        list(StepLoader(Numbers(2), Sampler(2, batch_size=2, rank=0, world=1), collate))


# A dataset that fetches a batch at once.


class Short(Numbers):
    def __getitems__(self, indices: list[int]) -> Any:
        return [str(index) for index in indices if index != 4]


class ShortTuple(Short):
    def __getitems__(self, indices: list[int]) -> Any:
        return tuple(super().__getitems__(indices))


class ShortInPlace(Numbers):
    def __getitems__(self, indices: list[int]) -> Any:
        if 4 in indices:
            indices.remove(4)
        return list(indices)


def test_samples_that_a_dataset_leaves_out_are_missed(subtests: pytest.Subtests) -> None:
    each = [(Short(9), None), (ShortTuple(9), None), (Short(9), naming_a_tensor), (ShortInPlace(9), None)]
    said = "the dataset's __getitems__ returned 8"
    assert_ends(subtests, 1, [((trained, data, 9, how, itself, "exact", {}), 3, said) for data, how in each])


def test_what_is_fetched_at_once_stays_together() -> None:
    class Fetched(Columns):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError("one at a time")

    taken = []

    def collate(samples: Any) -> Any:
        taken.append(type(samples))
        return samples

    list(StepLoader(Fetched(4), Sampler(4, batch_size=2, rank=0, world=1), each_row(collate)))
    assert taken == [Tensor, Tensor]


# A batch of no samples is empty, or is refused.


def of_fixed_size(samples: Any) -> Batch:
    """Packs all samples into one row, which is there without samples as well."""
    row = torch.zeros(1, 8, dtype=torch.int64)
    row[0, : len(samples)] = torch.tensor(samples) + 1
    return Batch(samples.indices, {"index": torch.tensor(samples), "row": row})  # type: ignore[arg-type]


def without_twins(samples: Any) -> Batch:
    return Batch(torch.tensor(sorted(set(samples.indices))), {"names": [], "index": torch.tensor(sorted(set(samples)))})


def opaque(samples: Any) -> Batch:
    return Batch(samples.indices, Opaque(samples))  # type: ignore[arg-type]


def summed(samples: Any) -> Batch:
    return Batch(samples.indices, {"index": torch.tensor(samples), "sum": float(sum(samples) + len(samples))})  # type: ignore[arg-type]


def whole(samples: Any) -> Batch:
    return Batch(samples.indices, "all that there is")  # type: ignore[arg-type]


@pytest.mark.parametrize("collate", [of_fixed_size, without_twins, opaque, summed, whole, each_row(uneven)])
def test_data_that_keeps_a_sample_is_never_used_for_an_empty_batch(collate: Any) -> None:
    sampler = Sampler(3, batch_size=1, rank=1, world=2)
    assert sampler.idle
    with pytest.raises(Refused, match=r"of the collate_fn \w+ cannot be cut to 0 rows"):
        list(StepLoader(Numbers(3), sampler, collate))


# DataLoaders that are not ours: their samples come with their indices.


def keeps_indices(pairs: list[tuple[int, int]]) -> Any:
    return torch.tensor([index for index, _ in pairs]), {"index": torch.tensor(first([each for _, each in pairs]))}


def row_of_each(pairs: list[tuple[int, int]]) -> Any:
    return torch.tensor([index for index, _ in pairs]), {"index": torch.tensor([each for _, each in pairs])}


def names_pairs(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(*row_of_each(pairs))


def names_one_less(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(*row_of_each([pair for pair in pairs if pair[0] != 4]))


class Ready(IterableDataset[Any]):
    """Makes its batches itself."""

    def __init__(self, collate: Any):
        self.collate = collate

    def __iter__(self) -> Any:
        return (self.collate([(index, index) for index in range(begin, begin + 4)]) for begin in (0, 4))


def driven(loader: DataLoader[Any]) -> Any:
    """What stands around a loader, such as a progress bar."""
    yield from loader


OWN = {
    "untold": lambda sampler: DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=keeps_indices),
    "promised": lambda sampler: DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=each_row(keeps_indices)),
    "ready": lambda sampler: DataLoader(Ready(keeps_indices), batch_size=None),
    "driven": lambda sampler: driven(DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=keeps_indices)),
    "names less": lambda sampler: DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=names_one_less),
    "each row": lambda sampler: DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=each_row(row_of_each)),
    "names": lambda sampler: DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=names_pairs, num_workers=1),
    "ready and names": lambda sampler: DataLoader(Ready(names_pairs), batch_size=None, num_workers=1),
    "driven and names": lambda sampler: driven(DataLoader(Pairs(8), 4, sampler=sampler, collate_fn=names_pairs)),
}


def by_own_loader(kind: str) -> list[int]:
    counts = Counts(8)
    with Account(task="t", plan={"train": EPOCHS}) as account:
        sampler = account.sampler("train", 8, batch_size=4, shuffle=False)
        for epoch in range(1, EPOCHS + 1):
            for batch in account.epoch("train", epoch, OWN[kind](sampler)):
                counts.step(batch.data["index"])
                account.commit()
    return counts.times


ENDS = {
    "untold": (2, "train epoch 1, step 1 of 2: the collate_fn keeps_indices returned a tuple"),
    "promised": (3, "made parts of 2 rows, and not one row of each"),
    "ready": (2, "the batches of a DataLoader without batch_size must be torchtally.Batch(indices, data)"),
    "driven": (2, "the batches of a generator must be torchtally.Batch(indices, data)"),
    "names less": (3, ""),
}


def test_a_loader_of_ones_own_tells_as_well(subtests: pytest.Subtests) -> None:
    for kind, [found] in zip(OWN, in_turn(1, ((by_own_loader, kind) for kind in OWN)), strict=True):
        with subtests.test(kind):
            code, sentence = ENDS.get(kind, (0, ""))
            assert (found["code"], found["result"]) == (code, None if code else [EPOCHS] * 8), found["err"]
            assert sentence in found["err"]


# An answer is that to a request.


def test_an_answer_to_another_request_is_not_taken() -> None:
    sampler = Sampler(6, batch_size=2, rank=0, world=1)
    sampler.set_epoch(1)
    source = StepLoader(Numbers(6), sampler)
    source.dataset.__class__ = Swapped
    with pytest.raises(Unproven, match="came in another order than that of its steps"):
        list(source)


class Swapped(ByStep):
    """Answers to request 1 when it is asked for 2, and the other way round."""

    def __getitem__(self, request: Any) -> Any:
        number, *rest = request
        return super().__getitem__(((0, 2, 1)[number], *rest))
