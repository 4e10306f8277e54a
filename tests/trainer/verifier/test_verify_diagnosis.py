"""What a digest names, in words: steps of a rank, samples of its shard, single samples; at any n."""

from typing import Any

import bruteforce
import numpy as np
import pytest
from bruteforce import Line
from hypothesis import given
from hypothesis import strategies as st
from judged import line, sentences

from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.order import Order
from torchtally.proof.permutation import permute
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.shards import Progression, Shard


def of_rank(wrong: int, change: Any) -> Any:
    """Only this rank, in the first train epoch, consumes what `change` makes of its shard."""
    return lambda phase, epoch, rank, shard: change(shard) if (phase, epoch, rank) == ("train", 1, wrong) else shard


def told(lines: list[Line], who: str = "rank 2") -> list[str]:
    start = f"train epoch 1: {who}: "
    return [each.removeprefix(start) for each in sentences(lines) if each.startswith(start) and " lost, " not in each]


def quiet(lines: list[Line], rank: int | str) -> list[str]:
    """What the digest says of a rank whose line says that nothing was wrong."""
    bad = line(lines, rank)
    bad |= {"lost": 0, "duplicated": 0, "expected": bad["consumed"], "lost_indices": [], "duplicated_indices": []}
    name = "all ranks together report" if rank == "all" else f"rank {rank} reports"
    found = next(
        each for each in sentences(lines) if each.startswith(f"train epoch 1: {name} nothing lost or duplicated")
    )
    return found.partition(" duplicated: ")[2].split("; ")


def again(first: int, last: int) -> Any:
    return lambda shard: shard + shard[first : last + 1]


def without(first: int, last: int) -> Any:
    return lambda shard: shard[:first] + shard[last + 1 :]


EIGHT = {"n": 444, "batch": 8}  # 2 of each rank in a step
TEN = {"n": 444, "batch": 10}  # rank 2 of 4 has the positions 2 6 | 10 14 18 | 22 26 | 30 34 38 | ...
PADDED = {"n": 442, "batch": 12, "contract": "padded"}  # rank 2 has 434, 438 and, after the last, 0 in step 36


@pytest.mark.parametrize(
    ("run", "change", "said"),
    [
        (EIGHT, again(4, 5), ["step 2 (samples 4-5 of its shard) was consumed twice"]),
        (EIGHT, again(4, 7), ["steps 2-3 (samples 4-7 of its shard) were consumed twice"]),
        (EIGHT, again(4, 59), ["steps 2-29 (samples 4-59 of its shard) were consumed twice"]),
        (EIGHT, lambda shard: shard + 2 * shard[20:60], [
            "steps 10-29 (samples 20-59 of its shard) were consumed 3 times",
        ]),
        (EIGHT, without(0, 1), ["step 0 (samples 0-1 of its shard) was never consumed"]),
        (EIGHT, without(100, 103), ["steps 50-51 (samples 100-103 of its shard) were never consumed"]),
        (EIGHT, without(101, 110), ["samples 101-110 of its shard were never consumed"]),
        (EIGHT, without(98, 110), ["steps 49-55 (samples 98-110 of its shard) were never consumed"]),  # to the end
        (EIGHT, without(0, 110), ["steps 0-55 (samples 0-110 of its shard) were never consumed"]),
        (EIGHT, without(4, 4), []),  # its line names it
        (EIGHT, without(4, 6), []),
        (EIGHT, lambda shard: shard[:20] + shard[40:60] + shard[40:], [
            "steps 10-19 (samples 20-39 of its shard) were never consumed",
            "steps 20-29 (samples 40-59 of its shard) were consumed twice",
        ]),
        # Steps count from where the epoch was taken up.
        (EIGHT | {"start": 123}, again(4, 7), ["steps 2-3 (samples 4-7 of its shard) were consumed twice"]),
        (TEN, without(2, 4), ["step 1 (samples 2-4 of its shard) was never consumed"]),
        (TEN, without(2, 6), ["steps 1-2 (samples 2-6 of its shard) were never consumed"]),
        (TEN, without(1, 4), []),
        ({"n": 60, "batch": 4}, again(4, 4), []),  # a single sample is named, though it is all of its step
        (PADDED, without(108, 109), []),
        (PADDED, without(108, 110), ["step 36 (samples 108-110 of its shard) was never consumed"]),
    ],
)  # fmt: skip
def test_whole_steps_are_named(run: dict[str, Any], change: Any, said: list[str]) -> None:
    lines = bruteforce.run(**run, plan={"train": 1}, consume=of_rank(2, change))
    assert told(lines) == said
    if said:  # where the line keeps quiet, its digest tells all the same
        assert quiet(lines, 2) == said


@pytest.mark.parametrize(
    ("contract", "start", "change", "said"),
    [
        ("exact", 40, again(10, 19), "steps 5-9 (positions 80-119 of the order) were consumed twice"),
        ("exact", 0, without(4, 19), "steps 2-9 (positions 16-79 of the order) were never consumed"),
        # Position 0, which should be there twice, is there 4 times.
        ("padded", 0, lambda shard: shard * 2, "positions 1-442 of the order were consumed twice"),
        ("padded", 0, again(0, 5), "steps 0-2 (positions 0-23 of the order) were consumed once too often"),
        ("drop_last", 0, lambda shard: shard * 2, "steps 0-54 (positions 0-439 of the order) were consumed twice"),
    ],
)  # fmt: skip
def test_steps_of_all_ranks_are_named(contract: str, start: int, change: Any, said: str) -> None:
    lines = bruteforce.run(
        443, contract=contract, plan={"train": 1}, consume=lambda *step: change(step[3]), batch=8, start=start
    )
    assert told(lines, "all ranks together") == [said]


def test_the_last_samples_beyond_the_end_of_the_contract_are_of_no_step() -> None:
    lines = bruteforce.run(443, world=2, contract="drop_last", plan={"train": 1}, batch=442)
    bad = line(lines, "all")
    words = bruteforce.words(order := bruteforce.order(443, 0, 1), {s: p for p, s in enumerate(order)}, bruteforce.RUN)
    both = zip(bruteforce.decoded(bad["digest"]), words, strict=True)
    bad |= {"digest": bruteforce.encoded([sum(pair) % bruteforce.P for pair in both]), "consumed": 442 + 443}
    found = next(each for each in sentences(lines) if "all ranks together report nothing" in each)
    assert found.endswith("0 lost and 443 duplicated: positions 0-442 of the order were consumed once too often")


def test_single_samples_are_named() -> None:
    own = bruteforce.deal(bruteforce.order(60, 0, 1), 4, "exact")
    a, b, c = own[2][3], own[2][7], own[1][0]

    def consume(shard: list[int]) -> list[int]:
        return [each for each in shard if each != a] + [b, b, c]

    lines = bruteforce.run(plan={"train": 1}, consume=of_rank(2, consume))
    assert quiet(lines, 2) == [
        f"sample {a} was never consumed",
        f"sample {b} was consumed 3 times",
        f"sample {c} was consumed, though not in its shard",
    ]
    lines = bruteforce.run(plan={"train": 1}, consume=of_rank(2, lambda shard: [*shard, c, c, -1, 60]))
    assert quiet(lines, 2) == [
        f"sample {c} was consumed twice, though not in its shard",
        "2 consumed indices are not samples",
    ]


def test_single_samples_of_all_ranks() -> None:
    order = bruteforce.order(62, 0, 1)
    for contract, change, said in (
        ("padded", lambda shard: shard[:-1], f"sample {order[0]} was consumed once, not twice"),
        ("padded", lambda shard: [*shard, order[1]], f"sample {order[1]} was consumed 3 times, not twice"),
        (
            "drop_last",
            lambda shard: [*shard, order[61]],
            f"sample {order[61]} was consumed, though not in the contract",
        ),
        ("exact", lambda shard: [*shard, order[61]], f"sample {order[61]} was consumed twice"),
        ("exact", lambda shard: [*shard, -7], "1 consumed index is not a sample"),
    ):
        lines = bruteforce.run(62, contract=contract, plan={"train": 1}, consume=of_rank(2, change))
        assert quiet(lines, "all") == [said]


def test_indices_of_no_sample_may_be_named() -> None:
    lines = bruteforce.run(plan={"train": 1}, consume=of_rank(2, lambda shard: [*shard, -1, 60]))
    found = sentences(lines)
    assert "train epoch 1: rank 2: 0 lost, 2 (-1, 60) duplicated, 2 of them outside of the dataset" in found
    assert len(found) == 2  # and all ranks with it
    line(lines, 2)["duplicated_indices"] = [-1, 60, 61]
    assert '"duplicated_indices" is [-1, 60, 61], allowed is a list of at most 2' in sentences(lines)[0]
    lines = bruteforce.run(plan={"train": 1}, consume=of_rank(2, lambda shard: [*shard, shard[0], -1]))
    bad = line(lines, 2)
    first = bad["duplicated_indices"][1]
    bad["duplicated_indices"] = [-2, -1]
    said = "rank 2 names -2, -1 as duplicated, outside of 0 to 59, but its digest shows that "
    said += f"sample {first} was consumed twice"
    assert f"train epoch 1: {said}; 1 consumed index is not a sample" in sentences(lines)


@given(st.data(), st.integers(0, 8), st.integers(0, 8))
def test_up_to_eight_lost_and_eight_duplicated_that_are_all_named_are_checked(
    data: st.DataObject, lost: int, duplicated: int
) -> None:
    def consume(shard: list[int]) -> list[int]:
        mixed = data.draw(st.permutations(shard))
        return mixed[lost:] + mixed[20 : 20 + duplicated]

    lines = bruteforce.run(120, plan={"train": 1}, consume=of_rank(2, consume))
    assert not any("digest" in each for each in sentences(lines))
    bad = line(lines, 2)
    if lost:
        names = set(bad["lost_indices"])
        other = data.draw(st.sampled_from([index for index in range(120) if index not in names]))
        bad["lost_indices"] = sorted([*bad["lost_indices"][1:], other])
        assert any("rank 2" in each and "digest" in each for each in sentences(lines))


def test_indices_of_no_sample_are_no_part_of_what_the_digest_must_fit() -> None:
    consume = of_rank(2, lambda shard: [*shard[8:], *shard[::-4][:5], -1, 120])
    lines = bruteforce.run(120, plan={"train": 1}, consume=consume)
    assert (line(lines, 2)["lost"], line(lines, 2)["duplicated"]) == (8, 7)
    assert not any("digest" in each for each in sentences(lines))
    bad = line(lines, 2)
    bad["lost_indices"][0] = next(index for index in range(120) if index not in bad["lost_indices"])
    said = "rank 2 reports 8 lost and 7 duplicated, but its digest does not match"
    assert any(said in each for each in sentences(lines))


def test_few_wrong_samples_would_be_named_by_a_digest_that_fits() -> None:
    lines = bruteforce.run(120, plan={"train": 1}, consume=of_rank(2, lambda shard: shard[::3] * 3))
    bad = line(lines, 2)
    said = "digest does not match: other samples were consumed than the line reports, too many to name"
    assert not any(said in each for each in sentences(lines))
    bad |= {"lost": 4, "duplicated": 4, "lost_indices": [], "duplicated_indices": []}
    assert f"train epoch 1: rank 2 reports 4 lost and 4 duplicated, but its {said}" in sentences(lines)


# No closed form grows with n


def huge(n: int, contract: str = "exact", start: int = 0, order: Order = "feistel-1", **of_two: Any) -> list[Line]:
    """Lines that could never be counted out, by the trainer's own closed forms; rank 2 of 4 may have its own."""
    lines = []
    g = digest.base(bruteforce.RUN)
    template = bruteforce.run(plan={"train": 1})
    for each in template:
        rank = 0 if each["rank"] == "all" else each["rank"]
        shard = Shard(n=n, rank=rank, world=4, contract=contract, order=order, start=start)
        if each["rank"] == "all":
            size, found = start + shard.total, digest.of_all_ranks(shard, g)
        else:
            size = shard.size
            found = sum((digest.of_progression(part, g) for part in shard.progressions), Digest())
        each |= {"n": n, "start": start, "contract": contract, "order": str(order), "batch": 128, "digest": str(found)}
        if isinstance(order, LocalOrder) and each["rank"] == "all":
            each["sizes"] = [[*run] for run in order.sizes.runs]
        lines.append(each | {"expected": size, "consumed": size} | (of_two if each["rank"] == 2 else {}))
    return lines


@pytest.mark.parametrize("contract", ["exact", "padded", "drop_last"])
@pytest.mark.parametrize("n", [2**60 + 3, 2**61 - 2, 10**12 + 39])
@pytest.mark.parametrize("local", [False, True])
def test_a_huge_order_takes_no_time(n: int, contract: str, local: bool) -> None:
    order: Order = LocalOrder(2, 2, ShardSizes.of([n - 5, 3, 2])) if local else "feistel-1"
    for start in 0, 1, n // 2, n - 1:
        # The ranks' index sums, which have no closed form, are left at 0 in these lines.
        lines = huge(n, contract, start, order)
        assert [each for each in sentences(lines) if "it differs in I_" not in each] == []
        line(lines, 2)["consumed"] += 1
        said = "rank 2 reports nothing lost or duplicated, but its digest shows 0 lost and 1 d"
        assert any(said in each for each in sentences(lines))


def test_a_garbled_n_takes_no_time() -> None:
    for contract in "exact", "padded", "drop_last":
        lines = bruteforce.run(contract=contract)
        for each in lines:
            each["n"] = 2**60 + 1
        found = sentences(lines)
        assert any("expected 15, but N 1152921504606846977 over world size 4" in each for each in found)
        assert any("rank 2 reports nothing lost or duplicated, but its digest shows" in each for each in found)


def test_a_garbled_world_takes_no_time() -> None:
    lines = bruteforce.run(1, contract="padded", plan={"train": 1})
    for each in lines:
        each["world"] = 1_000_000
    assert "no tally line of ranks 4-999999" in sentences(lines)[0]


def test_steps_of_a_huge_order_are_named() -> None:
    n = 2**60 + 3
    g = digest.base(bruteforce.RUN)
    first = 10**15
    twice = Progression(2 + 4 * 32 * first, 4, 32 * 10**6)  # 32 of each rank a step
    shard = Shard(n=n, rank=2, world=4)
    own = digest.of_progression(shard.progressions[0], g) + digest.of_progression(twice, g)
    size = shard.size
    indices = permute(np.arange(8) * 4 + twice.first, n, 0, 1).tolist()
    right = {"duplicated": twice.count, "consumed": size + twice.count, "digest": str(own), "lost_indices": []}
    lines = huge(n, **right, duplicated_indices=sorted(indices))
    samples = f"samples {32 * first}-{32 * first + twice.count - 1} of its shard"
    assert told(lines) == [f"steps {first}-{first + 10**6 - 1} ({samples}) were consumed twice"]
    assert not any("names" in each for each in sentences(lines))
    strange = permute(np.array([twice.first + 1]), n, 0, 1).tolist()
    found = sentences(huge(n, **right, duplicated_indices=sorted(strange + indices[1:])))
    said = f"rank 2 names sample {strange[0]} as duplicated, but its digest shows that steps"
    assert any(said in each for each in found)
