"""The samples in some weights are those of the steps that lead to them, whatever was trained in vain."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.measure import lineage, resumes
from bench.peers import resumes as counted

Step = tuple[str, str, str]  # weights before and after, samples


def noted(folder: Path, *ranks: list[Step]) -> Path:
    for rank, steps in enumerate(ranks):
        lines = [json.dumps({"before": before, "after": after, "samples": [*each]}) for before, after, each in steps]
        (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines))
    return folder


def test_what_a_killed_start_has_trained_after_its_checkpoint_does_not_count(tmp_path: Path) -> None:
    first = [("w0", "w1", "ab"), ("w1", "w2", "cd"), ("w2", "w3", "ef")]
    again = [("w1", "w4", "cd"), ("w4", "w5", "ee")]
    other = [("w0", "w1", "gh"), ("w1", "w2", "ij"), ("w1", "w4", "ij"), ("w4", "w5", "kl")]
    found = lineage.in_weights(noted(tmp_path, first + again, other))
    assert found == Counter("abcdeeghijkl")
    assert lineage.lost_and_duplicated(found, Counter("abcdefghijkl")) == (1, 1)
    assert lineage.weights(tmp_path) == ["w5", "w5"]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([("w0", "w1", "ab"), ("w9", "w2", "cd")], "no step leads to the weights w9"),
        ([("w0", "w1", "ab"), ("w0", "w1", "cd")], "two different steps lead to the weights w1"),
        ([("w0", "w1", "ab"), ("w1", "w0", "cd")], "the first weights come back"),
    ],
)
def test_steps_that_are_no_chain_are_refused(steps: list[Step], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        lineage.in_weights(noted(tmp_path, steps))


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["accelerate", "lightning"])
def test_the_chain_tells_what_a_parameter_counts(way: str, tmp_path: Path) -> None:
    times = resumes.counted_times(way, tmp_path)
    found = lineage.in_weights(tmp_path / "notes")
    assert sorted(found.values()) == sorted(each for each in times if each)
    assert len(times) == counted.N and set(times) != {counted.EPOCHS}
