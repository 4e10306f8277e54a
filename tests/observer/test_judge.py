"""Lines of logs, whole and damaged, of several attempts and jobs: what the verifier makes of them."""

import base64
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas
import pytest
import seen
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st
from seen import N

from torchtally.commands.verify import main
from torchtally.observed import judge, sets, shares
from torchtally.observed.judge import Observation
from torchtally.observed.line import Samples
from torchtally_observer import loaders, sketch
from torchtally_observer.indices import Bits, Indices
from torchtally_observer.line import PREFIX
from torchtally_observer.powers import Sums

EVEN, ODD = range(0, N, 2), range(1, N, 2)
_LOADER = {"type": "DataLoader", "dataset": "Digits", "length": N, "batch": 5, "workers": 0}
REPLACES = {"type": "RandomSampler", "replacement": True}
DISTRIBUTED = {"type": "DistributedSampler", "shuffle": True, "num_replicas": 2, "epoch": 0}


def line(rank: int, indices: Iterable[int], /, **values: Any) -> str:
    """A line of a pass that trains, as a log has it."""
    return seen.line(rank, [*indices], **{"sampler": {**DISTRIBUTED, "rank": rank}, "pod": f"pod-{rank}", **values})


def judged(*texts: str) -> Observation:
    lines = judge.Lines()
    for number, text in enumerate(texts, 1):
        lines.add(text, f"log:{number}")
    found = judge.judge(lines)
    assert found
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line(1, ODD)[:300], "log:2: an observed line is cut off, or mixed up with other output"),
        (line(1, ODD).replace('"v":1', '"v":2'), "version 2, and this release reads version 1: use the verifier of"),
        (line(1, ODD).replace('"rank":1', '"rank":-1', 1), "rank -1; it must be a whole number from 0"),
        (line(1, ODD, end="later"), "the end 'later', must be one of whole, left, open"),
        (line(1, ODD, sums=["1"]), "three whole numbers in sums"),
        (line(1, ODD, bits="*"), "bits that are no base64"),
        (line(1, ODD, loader=3), "no object loader"),
        (line(1, ODD, rank=2), "rank 2 of 2"),
        (PREFIX + "{}", "version None"),
        ("unrelated", "rank 1 of 2 has no line"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_right(text: str, said: str) -> None:
    found = judged(line(0, EVEN), text)
    assert found.outcome == "incomplete" and any(said in each for each in found.missing), found.missing


def test_the_same_data_is_not_taken_for_granted() -> None:
    bare = {"type": "Digits", "length": N, "attributes": "0", "rows": 0}
    found = judged(line(0, EVEN, base=bare), line(1, ODD, base=bare))
    [passes] = found.loaders[0].passes
    assert passes.counted.findings[0].text.startswith("each index handed out exactly once (whether the ranks have")
    other = {**bare, "attributes": "1"}
    assert any("cannot be told" in each for each in judged(line(0, EVEN, base=bare), line(1, ODD, base=other)).remarks)


@pytest.mark.parametrize(
    "texts",
    [
        (line(0, EVEN), line(1, ODD)),
        # Of collectors and progress bars, and twice.
        (" 50%|##  | 5/10" + line(0, EVEN), "[pod-1] " + line(1, ODD) + " trailing", line(0, EVEN)),
        # A pass that was open is said again at its end.
        (line(0, range(0, 20, 2), end="open", batches=3), line(0, EVEN), line(1, ODD)),
    ],
)
def test_two_ranks_that_share_the_samples_are_right(texts: tuple[str, ...]) -> None:
    found = judged(*texts)
    assert found.outcome == "observed" and not found.notes and not found.remarks
    assert len(found.loaders[0].passes) == 1


@pytest.mark.parametrize("again", ["bbbbbb", "aaaaaa"], ids=["moved", "stays"])
def test_a_dataset_that_moves_its_samples_is_not_the_same_on_all_ranks(again: str) -> None:
    """One that shuffles itself after an epoch may do so otherwise on each rank: no index goes to two of them."""
    found = judged(
        *(
            line(rank, own, contents={str(rank): text}, **{"pass": number})
            for number, text in enumerate(["aaaaaa", again])
            for rank, own in enumerate((EVEN, ODD))
        )
    )
    assert not found.faults
    assert any("the same data cannot be told" in each for each in found.remarks) == (again == "bbbbbb")


@pytest.mark.parametrize(
    "rows",
    [
        lambda order: [{"x": at, "more": [None, str(at)]} for at in order],
        lambda order: [(f"/data/{at}.jpg", np.int64(at)) for at in order],
        lambda order: {"x": torch.tensor(order), "y": [0] * 100},
        lambda order: pandas.DataFrame({"x": order}),
        lambda order: [shares.Amount(at, at, at) for at in order],
    ],
    ids=["dicts", "paths", "columns", "a data frame", "dataclasses"],
)
def test_the_rows_of_a_dataset_tell_whether_ranks_shuffle_them_for_themselves(rows: Callable[[list[int]], Any]) -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self, order: Iterable[int]) -> None:
            self.rows = rows([*order])

        def __len__(self) -> int:
            return 100

    first, same, other = (loaders.attributes(Rows(order)) for order in (range(100), range(100), range(99, -1, -1)))
    assert first == same and first[0] != other[0] and first[1] >= 48


@pytest.mark.parametrize("place", [lambda rank: rank % 2, lambda rank: rank // 2], ids=["local rank", "node"])
@pytest.mark.parametrize("divided", [False, True])
def test_ranks_that_share_their_data_with_some_others_are_judged_among_themselves(
    place: Callable[[int], int], divided: bool
) -> None:
    """Four ranks, of which two and two have the same files."""
    found = judged(
        *(
            line(
                rank % 2,
                range(rank < 2 if place(2) == 0 else rank % 2, N, 2) if divided else range(N),
                pod=f"pod-{rank // 2}",
                world=4,
                pid=rank,
                base={"type": "Digits", "length": N, "attributes": str(place(rank)), "rows": N},
                contents={"0": f"aaaaa{place(rank)}", "1": "bbbbbb"},
                **{"pass": number, "rank": rank},
            )
            for number in range(2)
            for rank in range(4)
        )
    )
    texts = [each for each in found.faults if "have the same data: each rank is handed all 40 samples" in each]
    assert len(texts) == (0 if divided else 2) == len(found.faults), found.faults


def test_a_cache_that_fills_tells_nothing() -> None:
    class Cached(torch.utils.data.Dataset[Any]):
        def __init__(self, *filled: Any) -> None:
            self.cache, self.named = [*filled, *[None] * (100 - len(filled))], dict(enumerate(filled))

        def __len__(self) -> int:
            return 100

    assert loaders.attributes(Cached()) == loaders.attributes(Cached(1.0, 2.0)) and not loaders.attributes(Cached())[1]


def test_a_restart_that_begins_with_an_order_of_before_is_noted() -> None:
    heads = "1" * 16, "2" * 16
    before = [line(rank, own, head=heads[rank]) for rank, own in enumerate((EVEN, ODD))]
    again = {"end": "left", "batches": 3, "began": seen.BEGAN + 9000, "at": seen.BEGAN / 1000 + 10}
    half = [line(rank, range(rank, 24, 2), pid=70 + rank, head=heads[rank], **again) for rank in range(2)]
    found = judged(*before, *half)
    assert found.attempts == 2 and not found.faults
    assert any(
        "attempt 1 began with the order of epoch 1, of which attempt 0 had handed out 100 %" in each
        for each in found.remarks
    )


def test_an_index_counts_by_its_place_whatever_its_type_or_sign() -> None:
    def values(*indices: Any) -> dict[str, Any]:
        found = Indices(loaders.Base([0] * 10, None))
        found.add(list(indices), None)
        return found.values()

    assert values(1, 2, 9) == values(True, 2, -1) == values(1, np.int64(2), 9) != values(1, 2, 8)


@pytest.mark.parametrize("numpy", [sys.modules["numpy"], None], ids=["NumPy", "no NumPy"])
@pytest.mark.parametrize("largest", [0, N, (1 << 32) - 1, 1 << 40])
def test_sums_of_powers_are_exact(largest: int, numpy: Any) -> None:
    indices = [*range(max(largest - N, 0), largest), *[largest] * (1 << 17)]
    sums = Sums()
    with mock.patch.dict(sys.modules, {"numpy": numpy}):
        sums.add(indices)
    assert sums.values == [len(indices), *(sum(index**power for index in indices) for power in (1, 2, 3))]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((line(0, [*EVEN, 7]), line(1, [*ODD, 9])), "2 samples are handed out twice (samples 7 and 9)"),
        ((line(0, EVEN), line(1, [each for each in ODD if each != 11])), "1 of 40 samples (sample 11) are left out"),
        ((line(0, EVEN), line(1, ODD), line(0, ODD, **{"pass": 1})), "rank 0 made 2 passes, and the others down to 1"),
        ((line(0, [3, 3, 9], world=1, sampler=REPLACES, end="left"),), "the pass ends early: "),
        (
            (line(0, [3] * N, world=1, sampler=REPLACES),),
            "drawn with replacement, or a part of them: 1 of 40 samples are",
        ),
    ],
)
def test_what_may_be_meant_is_a_remark(texts: tuple[str, ...], said: str) -> None:
    assert any(said in each for each in judged(*texts).remarks)


CONTENTS = {"0": "aaaaaa000001", "1": "bbbbbb000002", "2": "cccccc000001"}
OTHERS = {"0": "dddddd000001", "1": "eeeeee000002", "2": "ffffff000001"}
WITHOUT = {"0": "dddddd000009", "1": "eeeeee000008", "2": "ffffff000007"}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (CONTENTS, CONTENTS, "each rank is handed all 40 samples"),
        (CONTENTS, OTHERS, "each rank is handed all 40 samples"),  # labels are equal: images are augmented
        (CONTENTS, WITHOUT, "cannot be told"),
    ],
    ids=["the same", "augmented", "unknown"],
)
def test_the_same_indices_are_the_same_samples_where_contents_say_so(first: Any, second: Any, said: str) -> None:
    alone = {"type": "RandomSampler"}
    found = judged(line(0, range(N), sampler=alone, contents=first), line(1, range(N), sampler=alone, contents=second))
    assert any(said in each for each in [*found.faults, *found.remarks])
    assert bool(found.faults) == said.startswith("each")


@pytest.mark.parametrize("labels", ["112", "123", "121"], ids=["sorted", "an index", "labels"])
def test_equal_labels_in_the_order_of_the_samples_may_be_those_of_other_files(labels: str) -> None:
    bare = {"sampler": {"type": "RandomSampler"}, "base": {"type": "Digits", "length": N, "attributes": "0", "rows": 0}}
    found = judged(
        *(
            line(
                rank,
                range(N),
                **bare,
                contents={str(at): f"{rank}{at:05}00000{each}" for at, each in enumerate(labels)},
            )
            for rank in range(2)
        )
    )
    assert bool(found.faults) == (labels == "121"), found.faults


def test_contents_that_are_stable_and_differ_are_other_data() -> None:
    alone = {"type": "RandomSampler"}
    found = judged(
        *(
            line(rank, range(N), sampler=alone, contents=contents, **{"pass": number})
            for number in range(2)
            for rank, contents in enumerate([CONTENTS, OTHERS])
        )
    )
    assert not found.faults and any("different data under the same indices" in each for each in found.remarks)


@given(st.integers(1, 3000), st.integers())
def test_all_samples_in_any_division_are_each_once(n: int, seed: int) -> None:
    order = random.Random(seed).sample(range(n), n)
    parts = [order[rank::3] for rank in range(3)]
    found = [_samples(part, n) for part in parts]
    assert sets.equal(sets.together(found), sets.whole(n))


@given(st.integers(8, 3000), st.data())
def test_any_few_samples_that_are_exchanged_are_seen(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    duplicated = data.draw(
        st.lists(st.sampled_from(sorted({*range(n)} - lost)), min_size=len(lost), max_size=len(lost))
    )
    handed = [each for each in range(n) if each not in lost] + duplicated
    assert not sets.equal(_samples(handed, n), sets.whole(n))
    if len(lost) < 3:
        fewer = _samples([each for each in range(n) if each not in lost], n)
        assert sets.few(sets.whole(n), fewer) == sorted(lost)


@given(st.integers(1, 10**7))
def test_a_sketch_has_distinct_indices_in_order(n: int) -> None:
    chosen = sketch.chosen(n)
    assert len(chosen) == min(n, 1024) and all(a < b for a, b in itertools.pairwise(chosen))
    assert chosen[0] >= 0 and chosen[-1] < n


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_an_estimate_is_within_its_error(share: float) -> None:
    n, misses = 60000, 0
    for seed in range(40):
        kept = random.Random(seed).sample(range(n), round(n * (1 - share)))
        lost = sets.whole(n).bits & ~_samples(kept, n).bits
        amount = shares.Amount(lost.bit_count(), 1024, n)
        misses += abs(amount.share - share) > amount.error
    assert misses <= 6  # two standard errors: 1 of 20 beyond


def _samples(indices: list[int], n: int) -> Samples:
    distinct, sums, chosen = {*indices}, Sums(), sketch.chosen(n)
    sums.add(indices)
    first, second, third = map(int, sums.texts)
    bits = Bits(len(chosen))
    bits.values[:] = bytes(each in distinct for each in chosen)
    set_bits = int.from_bytes(base64.b64decode(f"{bits}=="), "big")
    return Samples(count=len(indices), sums=(first, second, third), bits=set_bits)


Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    """Calls the verifier with lines and options. Returns its exit code and what it prints."""

    def called(texts: Iterable[str], *options: str) -> tuple[int, str]:
        (log := tmp_path / "log").write_text("\n".join(texts) + "\n")
        return main([*options, str(log)]), capsys.readouterr().out

    return called


TWICE = [line(rank, part, **{"pass": at}) for at in range(2) for rank, part in enumerate((EVEN, ODD))]
OPEN = [line(rank, part[:10], **{"pass": 2}, end="open", batches=3) for rank, part in enumerate((EVEN, ODD))]


@pytest.mark.parametrize(
    ("texts", "options", "status", "said"),
    [
        ((line(0, EVEN), line(1, ODD)), (), 0, "✓ observed: 2 ranks, 1 pass, no fault"),
        ((line(0, EVEN), line(1, EVEN)), (), 1, "✗ observed: 2 ranks, 1 pass, 1 fault"),
        ((line(0, EVEN),), (), 3, "✗ incomplete: 2 ranks, 1 pass, and lines are missing"),
        ((line(0, EVEN), line(1, ODD)), ("--expect-per-pod", "20"), 0, "✓ observed"),
        ((line(0, EVEN), line(1, ODD)), ("--expect-per-pod", "19"), 1, "was handed out 20 samples, but"),
        ((*OPEN, *TWICE), ("--expect-per-pod", "20"), 3, "still open on ranks 0 and 1"),  # more may come
        ((*OPEN, *TWICE), ("--expect-per-pod", "5"), 1, "40 samples), pass 3: pod pod-1 was handed out 10 samples"),
        ((*OPEN, *TWICE), ("--expect-per-pod", "5"), 1, "40 samples), passes 1 and 2: pod pod-0 was handed out 20"),
        (("nothing",), (), 3, "no tally line"),
    ],
)
def test_the_verifier_exits_as_the_observation_says(
    verify: Verify, texts: tuple[str, ...], options: tuple[str, ...], status: int, said: str
) -> None:
    code, printed = verify(texts, *options)
    assert code == status and said in printed, printed


def test_a_training_that_cannot_be_judged_has_no_mark_by_a_right_evaluation(verify: Verify) -> None:
    own = {"sampler": {"type": "Favours"}}
    test = {"loader": {**_LOADER, "place": "train.py:40"}, "steps": 0, "gradients": False}
    evaluated = line(0, EVEN, **test), line(1, ODD, **test)
    assert verify([line(0, EVEN, **own), line(1, ODD, **own), *evaluated])[1].splitlines()[-1].startswith("✓")
    unjudged = [line(0, EVEN, **own), line(1, range(0, N, 3), **own)]
    by_hand = [line(rank, range(N), steps=0) for rank in range(2)]  # without an optimizer of PyTorch
    by_no_loader = [line(0, []).replace('"loader":{', '"unseen":"no DataLoader","loader":{')]
    for training in (unjudged, by_hand, by_no_loader):
        code, printed = verify([*training, *evaluated])
        assert code == 0 and printed.splitlines()[-1].startswith("observed: 2 ranks, "), printed


def test_the_verifier_says_the_same_in_json(verify: Verify) -> None:
    report = json.loads(verify([line(0, EVEN), line(1, EVEN)], "--json")[1])
    assert report["outcome"] == report["observation"]["outcome"] == "faulty" and report["holds"] is False
    [loader] = report["observation"]["loaders"]
    assert loader["passes"][0]["handed_out"] == {"0": 20, "1": 20} and loader["passes"][0]["lost"] == 20
    assert len(report["observation"]["faults"]) == 1


def test_distinct_rows_of_a_stream_are_not_said_to_come_again() -> None:
    """How many are distinct is an estimate."""
    for seed in range(200):
        rows = random.Random(seed).sample(range(1 << 32), 1000)
        kept = base64.b64encode(np.array(sorted(rows)[:128], dtype="<u4").tobytes()).decode().rstrip("=")
        values = json.loads(line(0, [], world=1, samples=1000).removeprefix(PREFIX))
        for name in ("base", "sums", "order", "head", "bits"):
            del values[name]
        values |= {"rows": 1000, "keys": True, "smallest": kept}
        observation = judged(PREFIX + json.dumps(values, separators=(",", ":")))
        assert observation.loaders and not observation.remarks, (seed, observation.remarks)
