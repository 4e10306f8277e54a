"""What a comparison calls better, worse and noise."""

from pathlib import Path

import made
import pytest

from bench import compare
from bench.results import Results
from bench.sample import Better

STEADY = [100.0, 101.0, 102.0, 103.0, 104.0]
SLOW = [value / 4 for value in STEADY]


def results(**tools: list[float]) -> Results:
    """Of one case, by tool."""
    found = made.results()
    for tool, values in tools.items():
        made.add(found, "throughput", values, tool=tool, world=2)
    return found


def times(factor: float, values: list[float] = STEADY) -> list[float]:
    return [factor * value for value in values]


@pytest.mark.parametrize(
    ("factor", "better", "expected"),
    [(1.5, "higher", "better"), (0.5, "higher", "worse"), (1.5, "lower", "worse"), (0.5, "lower", "better")],
)
def test_what_lies_apart_is_a_change_and_its_unit_says_of_which_kind(
    factor: float, better: Better, expected: str
) -> None:
    before, after = results(), results()
    made.add(before, "start", STEADY, better, what="torchtally")
    made.add(after, "start", times(factor), better, what="torchtally")
    (row,) = compare.rows(before, after)
    assert row.verdict == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"torchtally": STEADY}, {"torchtally": [103.5, 105.0, 106.0, 107.0, 108.0]}, "within noise"),
        ({"torchtally": STEADY[:3]}, {"torchtally": times(7, STEADY[:3])}, "too few values to say"),
        # In a slow hour of the machine.
        ({"blog": STEADY, "torchtally": times(3)}, {"blog": SLOW, "torchtally": times(3, SLOW)}, "within noise"),
        ({"blog": STEADY, "torchtally": times(3)}, {"blog": SLOW, "torchtally": times(4, SLOW)}, "better"),
        # Only rounds that both have are held against each other.
        (
            {"blog": STEADY, "torchtally": times(2)},
            {"blog": STEADY[:4], "torchtally": times(2)},
            "too few values to say",
        ),
    ],
)
def test_a_change_is_what_neither_noise_nor_the_machine_explains(
    before: dict[str, list[float]], after: dict[str, list[float]], expected: str
) -> None:
    (row,) = (row for row in compare.rows(results(**before), results(**after)) if "torchtally" in row.what)
    assert row.verdict == expected
    assert row.new.n == min(map(len, after.values()))


def test_the_report_counts_rows_and_says_what_only_one_has_and_what_is_another_machine() -> None:
    before = results(torchtally=STEADY, one=STEADY[:3], other=[1.0, 2.0, 3.0])
    after = results(torchtally=STEADY, one=times(4, STEADY[:3]), other=[3.0, 4.0, 5.0], lightning=STEADY)
    after.machine["cores"] = 64
    text = compare.report(before, after)
    assert "note: another cores: 2 -> 64" in text
    assert (
        "0 of 1 rows are beyond noise; by chance 0.0 would be. 2 more have too few values to say; in 1 of these" in text
    )
    assert "Measured before alone: 0; now alone: 1." in text


def test_what_is_no_file_of_results_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert compare.main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "a.json is no file of results" in capsys.readouterr().err
