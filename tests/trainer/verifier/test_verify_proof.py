"""The verdict against an independent count: whole runs hold, and every fault, forged or honest, is found."""

import random
from typing import Any

import bruteforce
from bruteforce import Line
from histories import History, contracts, histories
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, line, sentences, verdict, verdicts, with_word

from torchtally.verifier import report
from torchtally.verifier.phrasing import numbers

# Whole runs


@given(st.data(), st.integers(2, 20), st.integers(1, 4), contracts)
def test_any_single_changed_value_breaks_the_proof(data: st.DataObject, n: int, world: int, contract: str) -> None:
    lines = bruteforce.run(n, world, contract)
    for name in sorted(lines[0].keys() - {"pod"}):  # which says where, not what
        at = data.draw(st.sampled_from(range(len(lines))))
        old = lines[at][name]
        if isinstance(old, int):
            others: list[Any] = [new for new in (0, old - 1, old + 1, 2 * old, 2**32) if new >= 0]
        elif name == "digest":
            others = [with_word(old, word, 1 << bit) for word in range(20) for bit in range(0, 61, 12)]
        elif name == "plan":
            others = [{"train": 2, "test": 1}, {"train": 2}, {"train": 2, "test": 2, "more": 1}]
        else:
            others = ["exact", "padded", "drop_last", "feistel-1", "sequential", "train", "test", "all", 0, "another"]
        bad = lines[at] | {name: data.draw(st.sampled_from([other for other in others if other != old]))}
        assert not all(each.holds for each in verdicts([*lines[:at], bad, *lines[at + 1 :]])), name


@given(histories(), st.data())
def test_any_lost_line_breaks_the_proof(run: History, data: st.DataObject) -> None:
    lines = [*run.lines]
    lines.pop(data.draw(st.integers(0, len(lines) - 1)))
    assert not verdict(lines).holds


@given(st.permutations(bruteforce.run(20, 3)))
def test_the_order_of_lines_does_not_matter(lines: list[Line]) -> None:
    assert report.as_json(verdicts(lines)) == report.as_json(verdicts(bruteforce.run(20, 3)))
    assert verdict(lines).holds


@given(st.data(), contracts, st.integers(0, 19), st.integers(1, bruteforce.P - 1), st.booleans())
def test_any_single_changed_word_is_found(
    data: st.DataObject, contract: str, word: int, more: int, resumed: bool
) -> None:
    lines = RUNS[contract, resumed]
    at = data.draw(st.sampled_from(range(len(lines))))
    bad = lines[at]
    if bad["start"] and bad["rank"] != "all" and word > 16:
        return  # no closed form has the indices that earlier worlds consumed: `all` alone is checked then
    found = sentences([*lines[:at], bad | {"digest": with_word(bad["digest"], word, more)}, *lines[at + 1 :]])
    assert found, (bad["rank"], word)


RUNS = {
    (contract, resumed): bruteforce.run(22, 3, contract, 5, start=7 * resumed, batch=6)
    for contract in ("exact", "padded", "drop_last")
    for resumed in (False, True)
}


# Faults of the sampler or the loop, honestly counted by the trainer


def named(indices: list[int]) -> str:
    return numbers("", indices).lstrip("s ")


def forged(lines: list[Line]) -> list[Line]:
    """The same lines with nothing lost or duplicated, as a trainer says that counts and does not compare."""
    for each in lines:
        each.pop("lost_indices", None), each.pop("duplicated_indices", None)
        each |= {"lost": 0, "duplicated": 0, "consumed": each["expected"]}
    return lines


def test_a_rank_local_shuffle_that_only_counts_is_found_by_its_digest() -> None:
    def local(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return random.Random(rank).sample(range(60), len(shard))

    found = sentences(forged(bruteforce.run(plan={"train": 1}, consume=local)))
    assert len(found) == 5
    said = "digest does not match: other samples were consumed than the line reports, too many to name"
    assert found[0] == f"train epoch 1: all ranks together report nothing lost or duplicated, but their {said}"
    for rank in range(4):
        assert found[1 + rank] == f"train epoch 1: rank {rank} reports nothing lost or duplicated, but its {said}"


def test_a_sample_taken_three_times_too_many_is_named_once() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard + shard[:1] * 3 if rank == 0 else shard)
    bad = line(lines, 0)
    said = f"rank 0: 0 lost, 3 ({bad['duplicated_indices'][0]}, some more than once) duplicated"
    assert f"train epoch 1: {said}" in sentences(lines)


# Lines that contradict themselves


def test_a_count_that_does_not_add_up() -> None:
    found = changed(1, consumed=16)
    said = "rank 1 consumed 16, but expected 15 - lost 0 + duplicated 0 = 15"
    assert f"train epoch 1: {said}" in found
    assert "train epoch 1: all ranks together report consumed 60, but their lines add up to 61" in found
    said = "rank 1 reports nothing lost or duplicated, but its digest shows 0 lost and 1 duplicated: "
    assert f"train epoch 1: {said}1 consumed index is not a sample" in found


def without_first(count: int = 1) -> list[Line]:
    """A run whose rank 1 did not consume the first samples of its shard."""
    return bruteforce.run(plan={"train": 1}, consume=lambda phase, epoch, rank, shard: shard[count * (rank == 1) :])


def test_named_samples_that_do_not_fit_the_digest() -> None:
    lines = without_first()
    bad = line(lines, 1)
    lost = bad["lost_indices"][0]
    bad["lost_indices"] = [(lost + 1) % 60]
    found = [each for each in sentences(lines) if "rank 1 names" in each]
    said = f"rank 1 names sample {(lost + 1) % 60} as lost, but its digest shows that sample {lost} was never consumed"
    assert found == [f"train epoch 1: {said}"]


def test_a_sample_that_is_not_named() -> None:
    lines = without_first(2)
    bad = line(lines, 1)
    one, other = bad["lost_indices"]
    bad["lost_indices"] = [one]
    said = f"rank 1 names no more than {one} as lost, but its digest shows that "
    said += f"samples {named([one, other])} were never consumed"
    assert f"train epoch 1: {said}" in sentences(lines)


def test_counts_that_do_not_fit_the_digest() -> None:
    lines = without_first()
    bad = line(lines, 1)
    lost = bad["lost_indices"]
    bad |= {"lost": 2, "duplicated": 1, "lost_indices": [], "duplicated_indices": []}
    said = f"but its digest shows 1 lost and 0 duplicated: sample {lost[0]} was never consumed"
    assert f"train epoch 1: rank 1 reports 2 lost and 1 duplicated, {said}" in sentences(lines)
    bad |= {"lost": None, "duplicated": None}
    found = sentences(lines)
    assert "train epoch 1: rank 1: too many samples are lost or duplicated to count" in found
    assert f"train epoch 1: rank 1 reports too many lost or duplicated samples to count, {said}" in found


def test_a_whole_digest_where_samples_are_said_to_be_lost() -> None:
    said = "rank 1 reports lost or duplicated samples, but its digest is that of the whole shard"
    assert f"train epoch 1: {said}" in changed(1, lost=9, lost_indices=list(range(8)))
    assert f"train epoch 1: {said}" in changed(1, lost=2, duplicated=2)
    assert f"train epoch 1: {said}" in changed(1, lost=None, duplicated=None)
    said = "all ranks together report lost or duplicated samples, but their digest is that of the whole shard"
    assert f"train epoch 1: {said}" in changed("all", lost=2)


def test_the_line_of_all_is_the_sum() -> None:
    said = "all ranks together report expected 61, but their lines add up to 60"
    assert f"train epoch 1: {said}" in changed("all", expected=61)
    digest = with_word(with_word(line(bruteforce.run(), "all")["digest"], 2, 1), 18, 5)
    said = "the digest of all ranks together is not the sum of their lines: it differs in S_2, I_2"
    assert f"train epoch 1: {said}" in changed("all", digest=digest)
    said = "all ranks together report lost 2, but their lines add up to only 0"
    assert f"train epoch 1: {said}" in changed("all", lost=2)
    # Nothing can be said of a sum of which a part is not known.
    lines = bruteforce.run()
    line(lines, 1).update(lost=None, duplicated=None), line(lines, "all").update(lost=1)
    assert not any("add up" in each or "is not the sum" in each for each in sentences(lines))


def test_the_line_of_all_holds_what_was_consumed_before() -> None:
    lines = bruteforce.run(start=23)
    everything = line(lines, "all")
    everything["consumed"] = 61
    said = "all ranks together report consumed 61, but their lines and the 23 samples before add up to 60"
    assert f"train epoch 1: {said}" in sentences(lines)
    everything |= {"consumed": 60, "digest": with_word(everything["digest"], 2, 1)}
    said = "the digest of all ranks together is not the sum of their lines and the 23 samples before"
    assert f"train epoch 1: {said}: it differs in S_2" in sentences(lines)
    everything["digest"] = bruteforce.encoded(
        [
            sum(words) % bruteforce.P
            for words in zip(*(bruteforce.decoded(line(lines, r)["digest"]) for r in range(4)), strict=True)
        ]
    )
    found = sentences(lines)  # those before are not in it
    said = "all ranks together report nothing lost or duplicated, but their digest shows 23 lost and 23 duplicated: "
    told = "positions 0-22 of the order were never consumed; 23 consumed indices are not samples"
    assert f"train epoch 1: {said}{told}" in found


def test_indices_that_do_not_fit_their_positions() -> None:
    lines = bruteforce.run()
    for rank in 1, "all":  # so that the sum holds
        line(lines, rank)["digest"] = with_word(line(lines, rank)["digest"], 18, 5)
    said = "consumed the right positions of the order, but the sums of their sample indices do not match (I_2): "
    said = f"train epoch 1: all ranks together {said}feistel-1 was computed in a different way there"
    assert sentences(lines) == [said]
    line(lines, "all").update(lost=None, duplicated=None)  # as the trainer says it
    many = "train epoch 1: all ranks together: too many samples are lost or duplicated to count"
    assert sentences(lines) == [many, said]
