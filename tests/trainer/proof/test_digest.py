"""The digest, against sums that are added up one sample at a time; and what can be read from it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.proof import decoder, digest
from torchtally.proof.decoder import Stretch
from torchtally.proof.digest import Digest
from torchtally.proof.modular import P
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Progression, Shard

G = digest.base("run")
numbers = st.integers(0, 2**63 - 2)


def brute(positions: list[int], indices: list[int]) -> tuple[int, ...]:
    of_positions = [sum(pow(position + 1, k, P) for position in positions) % P for k in range(16)]
    spread = sum(pow(G, position + 1, P) for position in positions) % P
    return (*of_positions, spread, *(sum(pow(index + 1, k, P) for index in indices) % P for k in (1, 2, 3)))


def listed(part: Progression) -> list[int]:
    return [part.first + part.stride * j for j in range(part.count)]


def array(values: list[int]) -> Indices:
    return np.array(values, dtype=np.int64)


@given(st.lists(st.tuples(numbers, numbers), max_size=40))
def test_words_are_plain_sums(consumed: list[tuple[int, int]]) -> None:
    positions, indices = [p for p, _ in consumed], [i for _, i in consumed]
    assert digest.of_samples(array(positions), array(indices), G).words == brute(positions, indices)


progressions = st.builds(Progression, numbers, st.integers(1, 2**50), st.integers(0, 40))


@given(
    st.lists(numbers, min_size=1, max_size=5), st.sampled_from([1, 40]), st.integers(1, 2**50), st.integers(0, 2**60)
)
def test_those_of_many_shards_are_those_of_each(some: list[int], times: int, stride: int, count: int) -> None:
    firsts = some * times
    found = digest.of_progressions(np.array(firsts, dtype=np.uint64), stride, count, G)
    each = [digest.of_progression(Progression(first, stride, count), G) for first in firsts]
    assert [tuple(row) for row in found.tolist()] == [one.of_positions for one in each]


@given(progressions)
def test_a_shard_s_words_have_a_closed_form(part: Progression) -> None:
    assert digest.of_progression(part, G).of_positions == brute(listed(part), [])[:17]
    if part.first + part.stride * part.count < 2**63:
        indices = array(list(range(part.count)))
        assert digest.of_samples(array(listed(part)), indices, G).words == brute(listed(part), indices.tolist())


@pytest.mark.parametrize("end", [1, 30_000, 1 << 15, 99_999, 50_000, 70_000])
def test_an_epoch_may_end_after_any_number_of_samples(end: int) -> None:
    shard = Shard(n=100_000, rank=0, world=4, order="feistel-1", seed=5, end=end)
    positions = np.arange(end)
    assert digest.of_all_ranks(shard, G) == digest.of_samples(positions, shard.samples_at(positions), G)


@given(st.lists(numbers, max_size=9), st.lists(numbers, max_size=9), st.integers(-3, 3))
def test_digests_add_up(some: list[int], others: list[int], times: int) -> None:
    def of(positions: list[int]) -> Digest:
        return digest.of_samples(array(positions), array(positions), G)

    assert of(some) + of(others) == of(others + some)
    assert of(some + others) - of(others) == of(some)
    assert of(some) * times == sum([of(some)] * abs(times), Digest()) * (1 if times > 0 else -1)
    assert digest.parse(str(of(some))) == of(some)


@pytest.mark.parametrize("text", ["", "A" * 213, "A" * 215, "_" * 214, "?" * 214, "ä" * 214])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        digest.parse(text)


SHARD = Progression(2, 4, 10**9)
N = 4 * 10**9


@given(st.dictionaries(st.integers(0, N - 1), st.sampled_from([-2, -1, 1, 2, 7]), min_size=1, max_size=8))
def test_up_to_eight_positions_are_named(wrong: dict[int, int]) -> None:
    difference = sum((digest.of_progression(Progression(p, 1, 1), G) * times for p, times in wrong.items()), Digest())
    found = decoder.explain(difference, SHARD, N, G)
    assert found == [Stretch(Progression(p, 1, 1), times) for p, times in sorted(wrong.items())]


@given(
    st.lists(st.integers(0, SHARD.count), min_size=2, max_size=8, unique=True).filter(lambda ends: len(ends) % 2 == 0),
    st.lists(st.sampled_from([-1, 1, 2]), min_size=4, max_size=4),
)
def test_up_to_four_runs_of_any_length_are_named(ends: list[int], times: list[int]) -> None:
    ends.sort()
    wrong = [
        Stretch(Progression(SHARD.first + 4 * u, 4, v - u), c)
        for u, v, c in zip(ends[::2], ends[1::2], times, strict=False)
    ]
    difference = sum((digest.of_progression(each.positions, G) * each.times for each in wrong), Digest())
    found = decoder.explain(difference, SHARD, N, G)
    assert found is not None
    together = sum((digest.of_progression(each.positions, G) * each.times for each in found), Digest())
    assert together == difference
    if sum(each.positions.count for each in wrong) > 8:
        assert found == wrong


@pytest.mark.parametrize("count", [9, 16, 40, 1000])
def test_more_is_found_though_not_named(count: int) -> None:
    chance = random.Random(count)
    positions = chance.sample(range(N), count)
    difference = sum((digest.of_progression(Progression(p, 1, 1), G) for p in positions), Digest())
    assert decoder.explain(difference, SHARD, N, G) is None


def test_what_agrees_in_all_power_sums_is_found_by_the_run_s_own_word() -> None:
    """Prouhet, Tarry and Escott: numbers with an even and with an odd count of binary ones agree up to power 15."""
    even = [x for x in range(1 << 16) if x.bit_count() % 2 == 0]
    odd = [x for x in range(1 << 16) if x.bit_count() % 2 == 1]
    one, other = (digest.of_samples(array(some), array([0] * len(some)), G) for some in (even, odd))
    assert one.words[:16] == other.words[:16]
    assert one.words[16] != other.words[16]
    assert decoder.explain(one - other, Progression(0, 1, 1 << 16), 1 << 16, G) is None


def test_nothing_wrong_is_no_stretch() -> None:
    assert decoder.explain(Digest(), SHARD, N, G) == []
