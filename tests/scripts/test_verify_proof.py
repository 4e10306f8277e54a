"""The verdict against an independent count: whole runs hold, and every fault, forged or honest, is found."""

import random
from typing import Any

import bruteforce
import pytest
from bruteforce import Line
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import changed, line, sentences, verdict

from torchtally import shards
from verify import report

contracts = st.sampled_from(["exact", "padded", "drop_last"])


# Whole runs


@settings(deadline=None)
@given(n=st.integers(1, 300), world=st.integers(1, 9), contract=contracts, seed=st.integers(0, 2**64 - 1))
def test_a_faithful_run_holds(n: int, world: int, contract: str, seed: int) -> None:
    assert sentences(bruteforce.run(n, world, contract, seed)) == []


@settings(deadline=None)
@given(st.data())
def test_any_single_changed_value_breaks_the_proof(data: st.DataObject) -> None:
    contract = data.draw(contracts)
    lines = bruteforce.run(data.draw(st.integers(2, 40)), data.draw(st.integers(1, 5)), contract)
    changed = data.draw(st.sampled_from(lines))
    name = data.draw(st.sampled_from(sorted(changed.keys() - {"pod"})))  # which says where, not what
    old = changed[name]
    if isinstance(old, int):
        others: list[Any] = [new for new in (0, old - 1, old + 1, 2 * old, 2**32) if new >= 0]
    elif name == "digest":
        others = [f"{int(old, 16) ^ 1 << bit:016x}" for bit in range(64)]
    elif name == "plan":
        others = [{"train": 2, "test": 1}, {"train": 2}, {"train": 2, "test": 2, "more": 1}]
    else:
        others = ["exact", "padded", "drop_last", "feistel-1", "sequential", "train", "test", "all", 0, "another"]
    changed[name] = data.draw(st.sampled_from([other for other in others if other != old]))
    assert not verdict(lines).holds


@settings(deadline=None)
@given(st.data())
def test_any_lost_line_breaks_the_proof(data: st.DataObject) -> None:
    lines = bruteforce.run(20, data.draw(st.integers(1, 4)))
    lines.pop(data.draw(st.integers(0, len(lines) - 1)))
    assert not verdict(lines).holds


@settings(deadline=None)
@given(st.permutations(bruteforce.run(20, 3)))
def test_the_order_of_lines_does_not_matter(lines: list[Line]) -> None:
    assert report.as_json(verdict(lines)) == report.as_json(verdict(bruteforce.run(20, 3)))
    assert verdict(lines).holds


def test_the_order_is_walked_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def permute(positions: Any, *order: int) -> Any:
        walked.append(len(positions))
        return original(positions, *order)

    lines = bruteforce.run(2003, 100, seed=5)
    original = shards.permute
    monkeypatch.setattr(shards, "permute", permute)
    assert verdict(lines).holds
    assert sum(walked) == 2 * 2003


def test_a_long_order_is_walked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.expected._BLOCK", 50)
    for contract in "exact", "padded", "drop_last":
        assert sentences(bruteforce.run(1009, 7, contract, seed=9)) == []


# Faults of the sampler or the loop, honestly counted by the trainer


def test_a_rank_local_shuffle_has_the_right_counts_and_fails() -> None:
    def local(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return random.Random(rank).sample(range(60), len(shard)) if phase == "train" else shard

    found = sentences(bruteforce.run(consume=local))
    assert {each.split(":")[0] for each in found} == {"train epoch 1", "train epoch 2"}
    together = verdict(bruteforce.run(consume=local)).of(("train", 1))[0].text
    assert together.startswith("all ranks together: ") and "more, too many to name) lost" in together


def forged(lines: list[Line]) -> list[Line]:
    """The same lines with nothing lost or doubled, as a trainer says that counts and does not compare."""
    for each in lines:
        each.pop("lost_indices", None), each.pop("doubled_indices", None)
        each |= {"lost": 0, "doubled": 0, "consumed": each["expected"]}
    return lines


def test_a_rank_local_shuffle_that_only_counts_is_found_by_its_digest() -> None:
    def local(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return random.Random(rank).sample(range(60), len(shard))

    found = sentences(forged(bruteforce.run(plan={"train": 1}, consume=local)))
    assert len(found) == 5
    assert all("says nothing lost or doubled, but its digest is " in each for each in found[1:])


def test_two_samples_swapped_for_their_neighbours() -> None:
    def neighbours(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        if (phase, epoch, rank) != ("train", 2, 1):
            return shard
        up = next(sample for sample in shard if sample + 1 < 60 and sample + 1 not in shard)
        down = next(sample for sample in shard if sample > 0 and sample - 1 not in shard and sample != up)
        swapped = {up: up + 1, down: down - 1}
        return [swapped.get(sample, sample) for sample in shard]

    honest = bruteforce.run(consume=neighbours)
    bad = line(honest, 1, epoch=2)
    assert (bad["consumed"], bad["lost"], bad["doubled"]) == (15, 2, 2)
    lost, doubled = (", ".join(map(str, bad[name])) for name in ("lost_indices", "doubled_indices"))
    assert f"train epoch 2: rank 1: 2 ({lost}) lost, 2 ({doubled}) doubled" in sentences(honest)
    found = sentences(forged(bruteforce.run(consume=neighbours)))
    assert len(found) == 2 and found[1].startswith("train epoch 2: rank 1 says nothing lost or doubled")


def test_a_padding_sampler_under_the_exact_contract() -> None:
    lines, padded = (bruteforce.run(61, contract=contract, plan={"train": 1}) for contract in ("exact", "padded"))
    for exact, real in zip(lines, padded, strict=True):
        exact |= {name: real[name] for name in ("expected", "consumed", "digest", "lost", "doubled")}
    found = sentences(lines)
    assert "train epoch 1: all ranks together expected 64, but N 61 over world size 4 under exact makes 61" in found
    assert "train epoch 1: rank 3 expected 16, but N 61 over world size 4 under exact makes 15" in found
    assert any(each.startswith("train epoch 1: rank 3 says nothing lost or doubled, but") for each in found)
    assert not any("rank 0" in each for each in found)


@pytest.mark.parametrize(
    ("consume", "said"),
    [
        (lambda shard: shard[5:], "5 ({}) lost, 0 doubled"),
        (lambda shard: shard + shard[:5], "0 lost, 5 ({}) doubled"),
    ],
)
def test_a_skipped_or_repeated_batch(consume: Any, said: str) -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: consume(shard) if rank == 2 else shard)
    bad = line(lines, 2)
    named = ", ".join(map(str, bad["lost_indices"] or bad["doubled_indices"]))
    assert f"train epoch 1: rank 2: {said.format(named)}" in sentences(lines)


def test_a_sample_taken_three_times_too_many_is_named_once() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard + shard[:1] * 3 if rank == 0 else shard)
    bad = line(lines, 0)
    said = f"rank 0: 0 lost, 3 ({bad['doubled_indices'][0]}, some more than once) doubled"
    assert f"train epoch 1: {said}" in sentences(lines)


def test_two_ranks_that_swap_their_shards() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard)
    one, two = line(lines, 1), line(lines, 2)
    one["digest"], two["digest"] = two["digest"], one["digest"]
    found = sentences(lines)
    assert len(found) == 2 and "rank 1 says nothing" in found[0] and "rank 2 says nothing" in found[1]


# Lines that contradict themselves


def test_a_count_that_does_not_add_up() -> None:
    said = "rank 1 consumed 14, which does not fit: expected 15 - lost 0 + doubled 0 = 15"
    assert f"train epoch 1: {said}" in changed(1, consumed=14)
    assert "train epoch 1: all ranks together say consumed 60, but their lines add up to 59" in changed(1, consumed=14)


def test_a_shard_of_the_wrong_size() -> None:
    said = "rank 1 expected 16, but N 60 over world size 4 under exact makes 15"
    assert f"train epoch 1: {said}" in changed(1, expected=16, consumed=16)


def test_named_samples_that_do_not_fit_the_digest() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[1:] if rank == 1 else shard)
    bad = line(lines, 1)
    bad["lost_indices"] = [(bad["lost_indices"][0] + 1) % 60]
    found = [each for each in sentences(lines) if each.startswith("train epoch 1: rank 1 says")]
    assert len(found) == 1 and "says the indices that it names as lost or doubled, but its digest is" in found[0]
    assert bad["digest"] in found[0]


def test_named_samples_that_fit_are_no_further_fault() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[1:] if rank == 1 else shard)
    assert not any("digest" in each for each in sentences(lines))


def test_a_whole_digest_where_samples_are_said_to_be_lost() -> None:
    said = "rank 1 says that samples were lost or doubled, but its digest is that of the whole shard"
    assert f"train epoch 1: {said}" in changed(1, lost=9, lost_indices=list(range(8)), consumed=6)
    assert f"train epoch 1: {said}" in changed(1, lost=2, consumed=13)
    said = said.replace("rank 1 says", "all ranks together says")
    assert f"train epoch 1: {said}" in changed("all", lost=2, consumed=58)


def test_the_line_of_all_is_the_sum() -> None:
    said = "all ranks together say expected 61, but their lines add up to 60"
    assert f"train epoch 1: {said}" in changed("all", expected=61)
    said = "all ranks together say digest 0000000000000000, but their lines add up to "
    assert any(said in each for each in changed("all", digest="0" * 16))
    said = "all ranks together say lost 2, but their lines add up to only 0"
    assert f"train epoch 1: {said}" in changed("all", lost=2)
    said = "all ranks together say doubled 1, but their lines add up to only 0"
    assert f"train epoch 1: {said}" in changed("all", doubled=1)


def test_what_one_rank_lost_another_may_have_taken() -> None:
    def moved(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        dealt = bruteforce.deal(bruteforce.order(60, 0, epoch), 4, "exact")
        return shard[1:] if rank == 0 else [*shard, dealt[0][0]] if rank == 1 else shard

    found = sentences(bruteforce.run(plan={"train": 1}, consume=moved))
    assert len(found) == 2
    assert found[0].startswith("train epoch 1: rank 0: 1 (") and found[1].startswith(
        "train epoch 1: rank 1: 0 lost, 1 ("
    )
