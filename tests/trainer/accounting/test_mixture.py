"""A mixture: rows that take turns by weights, against a list of them, and each source in an order of its own."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from accounts import alone
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import Numbers

from torchtally import Account, Locality, Mixture
from torchtally.errors import Refused, Unproven
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.interleaving import MOST, Interleaving, described
from torchtally.proof.shards import Shard

weights = st.lists(st.integers(1, 40), min_size=1, max_size=9)


@settings(deadline=None)
@given(weights=weights, far=st.integers(0, 10**15))
def test_each_source_is_within_one_row_of_its_share_after_any_row(weights: list[int], far: int) -> None:
    turns = Interleaving.of(weights)
    assert [Fraction(each, sum(turns.weights)) for each in turns.weights] == [
        Fraction(w, sum(weights)) for w in weights
    ]
    rows, whole = 2 * sum(turns.weights) + 3, sum(turns.weights)
    sources, numbers = (each.tolist() for each in turns.at(np.arange(rows)))
    had = [0] * len(weights)
    for row, (source, number) in enumerate(zip(sources, numbers, strict=True)):
        assert had == turns.counts(row)
        assert number == had[source]
        had[source] += 1
        for own, weight in zip(had, turns.weights, strict=True):
            assert abs(own * whole - (row + 1) * weight) < whole
    # Far out, where it cannot be listed, the turns are those of the beginning.
    start = far // whole * whole
    later = [each.tolist() for each in turns.at(start + np.arange(rows))]
    before = turns.counts(start)
    assert later == [sources, [before[source] + number for source, number in zip(sources, numbers, strict=True)]]
    for source in range(len(weights)):
        own = np.array([number for each, number in zip(*later, strict=True) if each == source], dtype=np.int64)
        expected = [start + row for row, each in enumerate(sources) if each == source]
        assert turns.rows_of(source, own).tolist() == expected


@settings(deadline=None, max_examples=60)
@given(data=st.data(), weights=st.lists(st.integers(1, 9), min_size=1, max_size=5), length=st.integers(1, 300))
def test_each_sample_of_a_source_is_used_as_often_as_others_or_once_more(
    data: st.DataObject, weights: list[int], length: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=len(weights), max_size=len(weights)))
    sources = {str(number): Numbers(size, 1000 * number) for number, size in enumerate(sizes)}
    mixture = Mixture(
        sources, dict(zip(sources, weights, strict=True)), length=length, seed=data.draw(st.integers(0, 9))
    )
    used = Counter(mixture.__getitems__(range(length)))
    drawn = Interleaving.of(weights).counts(length)
    for number, (size, own) in enumerate(zip(sizes, drawn, strict=True)):
        times = [used[1000 * number + index] for index in range(size)]
        assert sum(times) == own
        assert {*times} <= {own // size, -(-own // size)}
    assert sum(used.values()) == length
    row = data.draw(st.integers(0, length - 1))
    source, index, epoch = mixture.place(row)
    assert mixture[row] == 1000 * int(source) + index
    assert mixture.row(source, index, epoch) == row


@settings(deadline=None, max_examples=60)
@given(
    world=st.integers(1, 5),
    contract=st.sampled_from(CONTRACTS),
    length=st.integers(1, 60),
    weights=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    size=st.integers(1, 20),
    data=st.data(),
)
def test_what_a_line_says_of_the_sources_is_what_the_ranks_consume(
    world: int, contract: Contract, length: int, weights: list[int], size: int, data: st.DataObject
) -> None:
    end = data.draw(st.none() | st.integers(1, length - 1)) if length > 1 else None
    shards = [Shard(n=length, rank=rank, world=world, contract=contract, end=end) for rank in range(world)]
    names = [str(number) for number in range(len(weights))]
    mixture = Mixture({name: Numbers(size) for name in names}, dict(zip(names, weights, strict=True)), length=length)
    rows = [row for shard in shards for row in shard.indices().tolist()]
    used = Counter(mixture.place(row)[:2] for row in rows)
    counts = mixture.mix.counts(shards[0])
    for name, (_, _, own) in counts.items():
        assert own == sum(used[name, index] for index in range(size))
    for name, sentence in zip(names, described(counts, shards[0]), strict=True):
        least, most = (how(used[name, index] for index in range(size)) for how in (min, max))
        stated = sentence.rpartition("samples ")[2].removesuffix("s").removesuffix(" time")
        low, high = int(stated.split()[0]), int(stated.split()[-1])
        assert low <= least <= most <= high
        if sum(shard.size for shard in shards) <= length:  # without repeats, they are the least and the most
            assert (low, high) == (least, most) or (least == most and high == low + 1 and own % size)


def test_the_turns_are_those_that_the_version_names() -> None:
    """A change to any of these needs another name than interleave-1."""
    turns = Interleaving((5, 3, 1, 1))
    assert turns.at(np.arange(12))[0].tolist() == [0, 1, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1]
    mixture = Mixture({"a": range(7), "b": range(7)}, {"a": 0.6, "b": 0.4}, length=20, seed=7)
    assert mixture.fingerprint == "unknown interleave-1 sha256:48abfc91abccaef8"
    assert mixture[:] == [6, 5, 3, 0, 4, 4, 2, 2, 5, 0, 1, 1, 2, 6, 6, 1, 3, 4, 3, 5]


def test_a_source_in_shard_files_keeps_its_locality() -> None:
    files = Numbers(400)
    files.shard_sizes = [10] * 40  # type: ignore[attr-defined]
    mixture = Mixture(
        {"files": files, "list": range(1000, 1010)}, {"files": 3, "list": 1}, length=400, order=Locality(window=2)
    )
    read = [sample // 10 for sample in mixture if sample < 1000]
    for at in range(0, 300, 20):
        assert len({*read[at : at + 20]}) == 2


# What is refused.


class Fewer(Numbers):
    def __getitems__(self, indices: list[int]) -> Any:
        return indices[1:]


class Column(Numbers):
    def __getitems__(self, indices: list[int]) -> Any:
        return np.array(indices)


A = {"a": Numbers(5)}


@pytest.mark.parametrize(
    ("sources", "weights", "options", "sentence"),
    [
        (A, {"b": 1}, {}, "weights must have the names of the sources, a, and has b"),
        ({}, {}, {}, "weights must have the names of the sources, none, and has none"),
        (
            A,
            {"a": 0},
            {},
            "weights={'a': 0} must be numbers above 0 in the ratio of whole numbers that add up to at most",
        ),
        (A, {"a": float("nan")}, {}, "must be numbers above 0"),
        ({**A, "b": Numbers(1)}, {"a": 1, "b": MOST}, {}, "at most 1000000, and these are as 1 : 1000000"),
        ({"a": Numbers(0)}, {"a": 1}, {}, "the source a has no sample"),
        ({"a": iter([])}, {"a": 1}, {}, "the source a must be a map-style dataset, and is a list_iterator"),
        ({"a\nb": Numbers(1)}, {"a\nb": 1}, {}, "must be printable text"),
        ({1: Numbers(1)}, {1: 1}, {}, "the name 1 of a source must be printable text"),
        ([Numbers(1)], [1], {}, "sources and weights must be dictionaries by the names of the sources, and are a list"),
        (A, {"a": 1}, {"length": 0}, "length=0 must be a whole number from 1"),
        (A, {"a": 1}, {"seed": -1}, "seed=-1 must be a whole number from 0"),
        (A, {"a": 1}, {"order": Locality(window=1)}, "needs a source with the attribute shard_sizes"),
    ],
)
def test_bad_input_is_one_sentence(sources: Any, weights: Any, options: Any, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        Mixture(sources, weights, **{"length": 5, **options})
    assert sentence in str(refused.value)


def test_a_source_that_changes_or_returns_other_samples_is_refused() -> None:
    source = Numbers(5)
    mixture = Mixture({"a": source}, {"a": 1}, length=5)
    before = mixture.fingerprint
    source.n = 4
    assert mixture.fingerprint != before
    with pytest.raises(Refused, match="the source a: the dataset had 5 samples when its loader was made, it has 4 now"):
        mixture[0]
    with pytest.raises(Unproven, match="the source a: for 5 samples its __getitems__ returned 4"):
        Mixture({"a": Fewer(5)}, {"a": 1}, length=5)[:]
    with pytest.raises(Refused, match="the source a: its __getitems__ must return a list, and returned a ndarray"):
        Mixture({"a": Column(5)}, {"a": 1}, length=5)[:]
    for row in (-1, 5):
        with pytest.raises(IndexError):
            mixture[row]


def shuffled() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        account.loader(Mixture(A, {"a": 1}, length=5), "train", batch_size=2)


def test_an_order_over_the_plans_is_refused() -> None:
    found = alone(shuffled)
    assert found["code"] == 2
    assert "train: a Mixture has an order of its own: pass shuffle=False" in found["err"]


class Augmented(Numbers):
    mix = 0.4  # as of a mixup


def mixes_otherwise() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        list(account.epoch("train", 1, account.loader(Augmented(5), "train", batch_size=2, trains=False)))


def test_another_dataset_may_have_an_attribute_of_the_name() -> None:
    found = alone(mixes_otherwise)
    assert found["code"] == 0, found["err"]
    assert "every sample exactly once" in found["out"]
