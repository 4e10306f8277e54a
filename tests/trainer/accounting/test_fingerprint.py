"""Data that differs from rank to rank, or from start to start, has another fingerprint, though it is as long."""

from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split
from witness import Noisy

from torchtally import Mixture, Packed, compat_datasets
from torchtally.accounting.data.fingerprint import UNKNOWN, fingerprint, is_unknown

ROWS = datasets.Dataset.from_dict({"number": list(range(40))})
PARTS = [TensorDataset(torch.zeros(size)) for size in (30, 10)]
CHOICES: dict[str, Callable[[int], Any]] = {
    "split": lambda seed: random_split(Noisy(40), [30, 10], torch.Generator().manual_seed(seed))[0],
    "split of a part": lambda seed: ConcatDataset([PARTS[0], CHOICES["split"](seed)]),
    "order of parts": lambda seed: ConcatDataset(PARTS[:: 1 if seed else -1]),
    "other parts": lambda seed: Subset(PARTS[seed], range(10)) if not seed else Subset(Noisy(40), range(10)),
    "shuffled": lambda seed: ROWS.shuffle(seed=seed),
    "neighbors": lambda seed: ROWS.select(range(10 * seed, 10 * seed + 10)),
    "part of a node": lambda seed: split_dataset_by_node(ROWS, seed, 2),
    "shuffled part of a node": lambda seed: split_dataset_by_node(ROWS, seed, 2).shuffle(seed=0),
    "mapped choice": lambda seed: ROWS.shuffle(seed=seed).map(lambda row: row, load_from_cache_file=False),
    "split of rows": lambda seed: ROWS.train_test_split(10, seed=seed)["train"],
}


@pytest.mark.parametrize("how", CHOICES)
def test_samples_that_are_chosen_by_a_seed_have_a_fingerprint_of_their_own(how: str) -> None:
    first, again, other = map(CHOICES[how], (0, 0, 1))
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


def test_indices_of_any_kind_are_compared_by_their_values() -> None:
    kinds = [list(range(5)), range(5), torch.arange(5), np.arange(5, dtype=np.int32)]
    assert len({fingerprint(Subset(Noisy(40), each)) for each in kinds}) == 1  # type: ignore[arg-type]


def test_what_has_no_fingerprint_has_none() -> None:
    assert fingerprint(PARTS[0]) is None
    assert fingerprint(Subset({"a": 1}, ["a"])) is None  # type: ignore[arg-type, list-item]
    assert fingerprint(Noisy(40)) == "noisy"


WHOLES: dict[str, Callable[[Any], Any]] = {
    "concatenated": lambda part: ConcatDataset([Noisy(2), part]),
    "mixed": lambda part: Mixture({"a": Noisy(2), "b": part}, {"a": 1, "b": 1}, length=4),
    "packed": lambda part: Packed(part, [1, 1], row=2),
    "packed parts": lambda part: Packed(ConcatDataset([Noisy(2), part]), [1, 1, 1, 1], row=2),
    "chosen": lambda part: Subset(part, [1]),
}


@pytest.mark.parametrize("how", WHOLES)
def test_a_whole_is_unknown_if_a_part_is(how: str) -> None:
    """Otherwise, a fold of other documents would go on with the checkpoint of the one before."""
    assert is_unknown(fingerprint(WHOLES[how](["a", "b"])) or UNKNOWN)
    assert not is_unknown(fingerprint(WHOLES[how](Noisy(2))) or UNKNOWN)


def test_a_file_in_another_folder_is_the_same_sample() -> None:
    def rows(folder: str, name: str = "a.png", content: bytes | None = None) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"image": [{"bytes": content, "path": f"{folder}/{name}"}]})

    assert fingerprint(rows("/one")) == fingerprint(rows("/other"))
    assert len({fingerprint(each) for each in (rows("/"), rows("/", "b.png"), rows("/", content=b"x"))}) == 3


def test_an_empty_table_and_a_long_one_have_a_fingerprint() -> None:
    assert fingerprint(ROWS.select([])) == fingerprint(ROWS.select(range(0)))
    long = datasets.Dataset.from_dict({"number": list(range(1000))})
    assert fingerprint(long) != fingerprint(long.skip(1))


def test_of_large_rows_fewer_are_read_from_the_whole_table() -> None:
    def rows(first: int, second: int) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"sound": [bytes(1 << 20)] * first + [b"1" * (1 << 20)] * second})

    read = list(compat_datasets.content(rows(80, 0)) or ())
    assert 2 <= len(read) < 64 and sum(map(len, read[:-1])) <= 1 << 24
    assert fingerprint(rows(80, 0)) != fingerprint(rows(40, 40)) != fingerprint(rows(10, 70))


def test_datasets_has_the_name_of_a_selection() -> None:
    assert hasattr(ROWS, compat_datasets.PRIVATE), "datasets has changed a private name that torchtally uses"
    assert np.concatenate(compat_datasets.chosen(ROWS.select([3, 1, 2]))).tolist() == [3, 1, 2]
