"""What a comparison calls better, worse and noise."""

import pytest

from bench import compare
from bench.results import Results
from bench.sample import Better, Sample

STEADY = [100.0, 101.0, 102.0, 103.0, 104.0]


def results(**tools: list[float]) -> Results:
    """Of one case, by tool."""
    found = Results(began="then", seconds=1.0, commit="abc", machine={"cores": 2}, versions={"torch": "2"})
    for tool, values in tools.items():
        add(found, "throughput", "higher", values, tool=tool, world=2)
    return found


def add(found: Results, measure: str, better: Better, values: list[float], **case: str | int) -> None:
    for number, value in enumerate(values):
        sample = Sample(measure=measure, case=case, unit="1/s", better=better, value=value)
        found.add(sample, round=number, load=0.5)


def verdict(before: Results, after: Results) -> str:
    (row,) = (row for row in compare.rows(before, after) if "torchtally" in row.what)
    return row.verdict


@pytest.mark.parametrize(
    ("times", "better", "expected"),
    [(1.5, "higher", "better"), (0.5, "higher", "worse"), (1.5, "lower", "worse"), (0.5, "lower", "better")],
)
def test_what_lies_apart_is_a_change_and_its_unit_says_of_which_kind(
    times: float, better: Better, expected: str
) -> None:
    before, after = results(), results()
    add(before, "start", better, STEADY, what="torchtally")
    add(after, "start", better, [times * value for value in STEADY], what="torchtally")
    assert verdict(before, after) == expected


def test_what_overlaps_is_noise() -> None:
    before = results(torchtally=STEADY)
    after = results(torchtally=[103.5, 105.0, 106.0, 107.0, 108.0])
    assert verdict(before, after) == "within noise"


def test_three_values_of_each_say_nothing_however_far_apart() -> None:
    assert verdict(results(torchtally=[1.0, 2.0, 3.0]), results(torchtally=[7.0, 8.0, 9.0])) == "too few values to say"


def test_rows_with_too_few_values_are_counted_apart() -> None:
    before, after = results(torchtally=STEADY, one=[1.0, 2.0, 3.0], other=[1.0, 2.0, 3.0]), results()
    for tool, values in {"torchtally": STEADY, "one": [4.0, 5.0, 6.0], "other": [3.0, 4.0, 5.0]}.items():
        add(after, "throughput", "higher", values, tool=tool, world=2)
    text = compare.report(before, after)
    assert "0 of 1 rows are beyond noise" in text
    assert (
        "2 more have too few values to say; in 1 of these, old and new values do not overlap; by chance 0 would" in text
    )


def test_a_slow_hour_of_the_machine_is_no_change() -> None:
    slow = [value / 4 for value in STEADY]
    before = results(blog=STEADY, torchtally=[3.0 * value for value in STEADY])
    after = results(blog=slow, torchtally=[3.0 * value for value in slow])
    assert verdict(before, after) == "within noise"


def test_a_change_in_a_slow_hour_is_one() -> None:
    slow = [value / 4 for value in STEADY]
    after = results(blog=slow, torchtally=[4.0 * value for value in slow])
    assert verdict(results(blog=STEADY, torchtally=[3.0 * value for value in STEADY]), after) == "better"


def test_only_rounds_that_both_have_are_held_against_each_other() -> None:
    before, after = results(blog=STEADY), results(blog=STEADY[:4])
    for found in (before, after):
        add(found, "throughput", "higher", [2 * value for value in STEADY], tool="torchtally", world=2)
    (row,) = (row for row in compare.rows(before, after) if "torchtally" in row.what)
    assert (row.old.n, row.new.n) == (5, 4)
    assert row.change == pytest.approx(1.0)


def test_the_report_says_what_is_another_machine_and_what_only_one_has() -> None:
    before, after = results(torchtally=STEADY), results(torchtally=STEADY, lightning=STEADY)
    after.machine["cores"] = 64
    text = compare.report(before, after)
    assert "note: another cores: 2 -> 64" in text
    assert "0 of 1 rows are beyond noise; by chance 0.0 would be. 0 more have too few values to say" in text
    assert "Measured before alone: 0; now alone: 1." in text


def test_what_is_no_file_of_results_is_said(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert compare.main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "a.json is no file of results" in capsys.readouterr().err
