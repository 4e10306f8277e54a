"""What lines must have in common, what is missing, and which run and attempt count."""

from typing import Any

import bruteforce
import pytest
from judged import changed, sentences, verdict

from torchtally.verifier.verdict import UnknownRun


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 59, "train: the lines disagree on n: 60 (ranks 0-3 and all ranks together), 59 (rank 1 in epoch 1)"),
        (
            "batch",
            8,
            "train epoch 1: the lines disagree on batch: 20 (ranks 0, 2-3 and all ranks together), 8 (rank 1)",
        ),
        ("start", 8, "train epoch 1: the lines disagree on start: 0 (ranks 0, 2-3 and all ranks together), 8 (rank 1)"),
        ("end", 30, "train epoch 1: the lines disagree on end: null ("),
        ("plan", {"train": 2, "test": 3}, 'the lines disagree on plan: {"test": 2, "train": 2} (ranks 0-3'),
    ],
)
def test_lines_that_disagree(name: str, value: object, said: str) -> None:
    found = changed(1, **{name: value})
    assert any(each.startswith(said) for each in found), found


def without(*, rank: Any = None, phase: str | None = None, epoch: int | None = None) -> list[str]:
    wanted = {name: value for name, value in (("rank", rank), ("phase", phase), ("epoch", epoch)) if value is not None}
    return sentences([each for each in bruteforce.run() if any(each[name] != wanted[name] for name in wanted)])


def test_missing_lines_are_named() -> None:
    assert without(rank=2) == ["no tally line of rank 2 at all"]
    assert without(rank=2, phase="test", epoch=2) == ["test epoch 2: no tally line of rank 2"]
    assert without(epoch=1) == [
        "train: no tally line of epoch 1, 2 planned",
        "test: no tally line of epoch 1, 2 planned",
    ]
    assert without(phase="test") == ["no tally line of phase test at all, epochs 1-2 planned"]
    only = [each for each in bruteforce.run() if each["rank"] == 1 and each["epoch"] == 2]
    assert "no tally line of ranks 0, 2-3 and all ranks together at all" in sentences(only)


def test_expect_per_pod_sums_the_ranks_of_a_pod() -> None:
    lines = bruteforce.run(ranks_per_pod=2)
    assert sentences(lines, expect_per_pod=30) == []
    found = sentences(lines, expect_per_pod=15)
    assert found[0] == "train epoch 1: pod demo-master-0 consumed 30, but --expect-per-pod is 15"
    assert len(found) == 4


def test_expect_per_pod_of_an_epoch_that_was_taken_up_again() -> None:
    found = sentences(bruteforce.run(start=20), expect_per_pod=15)
    said = "pod demo-master-0 consumed 10 from position 20 on, but --expect-per-pod is 15"
    assert found[0] == f"train epoch 1: {said}"
    assert len(found) == 4


def test_expect_per_pod_needs_a_train_phase() -> None:
    lines = bruteforce.run(plan={"test": 1})
    said = "no tally line of phase train, so --expect-per-pod has nothing to check"
    assert sentences(lines, expect_per_pod=15) == [said]


def test_one_of_two_runs_is_chosen() -> None:
    lines = bruteforce.run() + bruteforce.run(run="aaaaaaaaaaaa")[:7]
    chosen = verdict(lines, run="3f9c2a7b10de")
    assert chosen.holds
    assert chosen.notes == ["run aaaaaaaaaaaa (7 lines) is in the same log and was ignored"]
    assert not verdict(lines, run="aaaaaaaaaaaa").holds


def test_a_run_that_is_not_there() -> None:
    with pytest.raises(UnknownRun, match=r"no tally line of run 17; found: 3f9c2a7b10de \(20 lines\)"):
        verdict(bruteforce.run(), run="17")


def test_no_line_at_all() -> None:
    assert sentences([]) == ["no tally line in demo.log"]
    assert sentences([], run="17") == ["no tally line in demo.log"]


def test_what_an_earlier_attempt_did_after_the_place_that_a_later_one_went_back_to_does_not_count() -> None:
    back = [line for line in bruteforce.run(attempt=1) if line["epoch"] == 1]
    said = sentences(bruteforce.run() + back)
    assert said == ["train: no tally line of epoch 2, 2 planned", "test: no tally line of epoch 2, 2 planned"]
