"""A file of results, and the goals that are judged by it."""

import json
from pathlib import Path

import pytest

from bench import goals, limit, report, results, sample
from bench.results import Results
from bench.sample import Sample


def some(world: int = 2) -> Results:
    machine = {"processor": "A", "cores": 2, "memory_gb": 8}
    found = Results(began="2026-01-01", seconds=9.0, commit="abc", machine=machine, versions={"torch": "2"})
    speeds = {
        "torchtally": [3000.0, 6000.0, 9000.0],
        "blog": [1000.0, 1000.0, 3000.0],
        "lightning": [2000.0, 2000.0, 2000.0],
    }
    for number in range(3):
        for tool, values in speeds.items():
            case: dict[str, str | int] = {"task": "fashion-mnist", "world": world, "tool": tool}
            found.add(
                Sample(measure="throughput", case=case, unit="1/s", better="higher", value=values[number]), number, 0.5
            )
    return found


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    some().save(tmp_path / "results" / "a.json")
    assert results.load(tmp_path / "results" / "a.json") == some()


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", 2), ("series", [{}]), ("series", None), ("machine", ...), ("surplus", 1)],
)
def test_what_is_none_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "a.json"
    some().save(path)
    values = json.loads(path.read_text())
    if value is ...:
        del values[name]
    else:
        values[name] = value
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="no file of results"):
        results.load(path)


def test_a_series_twice_or_with_a_value_too_few_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    twice, uneven = some(), some()
    twice.series.append(twice.series[0])
    uneven.series[0].values.pop()
    for wrong in (twice, uneven):
        wrong.save(path)
        with pytest.raises(ValueError, match="no file of results"):
            results.load(path)


def test_samples_are_found_among_other_output(capsys: pytest.CaptureFixture[str]) -> None:
    sample.emit("start", 1.5, "s", "lower", what="it")
    output = capsys.readouterr().out
    (found,) = sample.found_in(f"other\n{output}{{}}\n")
    assert found == Sample(measure="start", case={"what": "it"}, unit="s", better="lower", value=1.5)


@pytest.mark.parametrize("task", limit.PARTS)
def test_the_limit_is_what_its_parts_allow(task: str) -> None:
    found, parts = some(), limit.PARTS[task]
    for what, value in {parts.products: 32 / 1e-3, parts.copied: 2.0}.items():
        found.add(Sample(measure="limit", case={"what": what}, unit="", better="higher", value=value), 0, 0.5)
    assert limit.limit(found, task, 1) == pytest.approx(32_000)
    assert limit.limit(found, task, 2) == pytest.approx(64 / (1e-3 + parts.gradient / 2e9))
    assert limit.limit(found, task, 4) == pytest.approx(128 / (2 * (1e-3 + 1.5 * parts.gradient / 2e9)))


def test_the_goals_of_the_page_are_those_of_the_latest_results() -> None:
    if not list(results.FOLDER.glob("*.json")):
        pytest.skip("no results are kept yet: make bench")
    newest = results.load(results.newest())
    page = report.PAGE.read_text()
    assert page == report.with_goals(page, newest, results.newest_on_gpu()), "python -m bench.report writes its goals"


def test_a_goal_is_reached_or_not_by_the_ratio_of_the_same_round() -> None:
    found = Results(began="then", seconds=1.0, commit="c", machine={"cores": 2}, versions={})
    for number, (ours, blogs, peers) in enumerate([(400, 90, 130), (4000, 900, 1300), (40, 9, 13)]):
        for tool, value in {"torchtally": ours, "blog": blogs, "lightning": peers, "accelerate": blogs}.items():
            case: dict[str, str | int] = {"task": "mnist-cnn", "world": 1, "tool": tool}
            taken = Sample(measure="throughput", case=case, unit="samples/s", better="higher", value=value)
            found.add(taken, number, 0.1)
    (row,) = [line for line in goals.text(found).splitlines() if line.startswith("| mnist-cnn, 1 rank")]
    assert "| 400 [40.0–4,000] | the blog's loop 90.0: 4.44× [4.44–4.44]" in row
    assert "best peer Lightning 130: 3.08× [3.08–3.08]" in row
    assert row.endswith("| ✓ |")
    found.one("throughput", tool="lightning").values[:] = [140, 1400, 14]  # type: ignore[union-attr]
    (row,) = [line for line in goals.text(found).splitlines() if line.startswith("| mnist-cnn, 1 rank")]
    assert row.endswith("| – |")


def test_a_goal_can_be_a_share_of_the_limit() -> None:
    found = some(world=1)
    parts = limit.PARTS["fashion-mnist"]
    for what, value in {parts.products: 7000.0, parts.copied: 1.0}.items():
        found.add(Sample(measure="limit", case={"what": what}, unit="", better="higher", value=value), 0, 0.1)
    for most, mark in ((7000, "✓"), (7100, "–")):
        found.one("limit", what=parts.products).values[:] = [most]  # type: ignore[union-attr]
        (row,) = [line for line in goals.text(found).splitlines() if line.startswith("| fashion-mnist, 1 rank")]
        assert row.split(" | ")[1] == "85% of the limit"
        assert row.endswith(f"| {mark} |")


def test_a_larger_model_is_compared_with_the_best_peer_and_the_limit() -> None:
    found = some()
    for number, values in enumerate([(900, 1000, 500), (1000, 1000, 500), (1010, 1000, 500)]):
        for tool, value in zip(("torchtally", "lightning", "blog", "accelerate"), (*values, 500), strict=True):
            case: dict[str, str | int] = {"task": "gpt-ddp", "world": 4, "tool": tool}
            found.add(
                Sample(measure="throughput", case=case, unit="tokens/s", better="higher", value=value), number, 0.1
            )
    passes = Sample(measure="limit", case={"what": limit.PASSES["gpt-ddp"]}, unit="", better="higher", value=1000)
    found.add(passes, 0, 0.1)

    def row() -> str:
        (line,) = [line for line in goals.text(found).splitlines() if line.startswith("| gpt with DDP, 4 ranks")]
        return line

    assert "1,000 [900–1,010]: 1.00× [0.90–1.01] | best peer Lightning 1,000 [1,000–1,000] | 2,000 (50%) | ✓ |" in row()
    found.one("throughput", task="gpt-ddp", tool="torchtally").values[1] = 999  # type: ignore[union-attr]
    assert row().endswith("| – |")


@pytest.mark.parametrize(
    ("measure", "ours", "other", "world", "most"),
    [
        ("first step of a GPT", {"start": "resumed"}, {"start": "cold"}, 2, 1.2),
        ("recovery", {"again": "in place", "killed": "x"}, {"again": "containers", "killed": "x"}, 4, 0.5),
    ],
)
def test_a_start_is_compared_with_the_other_of_its_round(
    measure: str, ours: dict[str, str | int], other: dict[str, str | int], world: int, most: float
) -> None:
    for beyond, mark in ((0.99, "✓"), (1.01, "–")):
        found = some()
        for number, slow in enumerate((1, 5, 2)):
            for case, value in ((ours, 10 * slow * most * beyond), (other, 10 * slow)):
                told = Sample(measure=measure, case={**case, "world": world}, unit="s", better="lower", value=value)
                found.add(told, number, 0.1)
        (row,) = [line for line in goals.text(found).splitlines() if f"at most {most:g}×" in line]
        assert row.endswith(f"| {mark} |")


def test_a_peer_that_was_not_measured_may_be_the_best_of_them() -> None:
    found = some()
    (row,) = [line for line in goals.text(found).splitlines() if line.startswith("| fashion-mnist, 2 ranks")]
    assert "2.5× the blog's loop, 2× the best peer" in row and "best peer Lightning" in row
    assert row.endswith("| – |")  # Accelerate was not measured
    found.series = [series for series in found.series if series.case["tool"] != "lightning"]
    (row,) = [line for line in goals.text(found).splitlines() if line.startswith("| fashion-mnist, 2 ranks")]
    assert row.endswith("| – |")


def test_what_a_pod_costs_the_store_must_not_grow_with_their_number() -> None:
    def rows(requests: dict[int, float]) -> list[str]:
        found = Results(began="then", seconds=1.0, commit="c", machine={"cores": 2}, versions={})
        for pods, value in requests.items():
            for measure, taken in {"store": value, "store, CPU": 0.5 + pods / 200}.items():
                case: dict[str, str | int] = {"what": "heartbeats", "pods": pods}
                found.add(Sample(measure=measure, case=case, unit="", better="lower", value=taken), 1, 0.1)
        return [line for line in goals.text(found).splitlines() if line.startswith("| heartbeats")]

    growth, share = rows({10: 20.0, 100: 200.0, 1000: 2000.0})
    assert "| 2,000: 1.00× |" in growth and growth.endswith("| ✓ |")
    assert share == "| heartbeats of 10,000 pods by a linear fit, % of pod 0's core | at most 100 | 50.5 | – | – | ✓ |"
    growth, _ = rows({10: 20.0, 100: 200.0, 1000: 20000.0})
    assert "| 20,000: 10.0× |" in growth and growth.endswith("| – |")
