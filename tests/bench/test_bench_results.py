"""A file of results, and the goals that are judged by it."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import pytest

from bench import goals, limit, report, results, sample
from bench.__main__ import ROUNDS, programs
from bench.results import Results
from bench.sample import Sample


def throughputs(task: str, world: int, **tools: list[float]) -> Results:
    found = made.results()
    for tool, values in tools.items():
        made.add(found, "throughput", values, task=task, world=world, tool=tool)
    return found


def some(world: int = 2) -> Results:
    ours, blogs, peers = [3000.0, 6000.0, 9000.0], [1000.0, 1000.0, 3000.0], [2000.0] * 3
    return throughputs("fashion-mnist", world, torchtally=ours, blog=blogs, lightning=peers)


def row(found: Results, part: str) -> str:
    """The one of the goals that has this in it."""
    (line,) = [line for line in goals.text(found).splitlines() if part in line]
    return line


@pytest.mark.parametrize(
    "wrong",
    [
        lambda values: values.update(version=2),
        lambda values: values.update(series=[{}]),
        lambda values: values.pop("machine"),
        lambda values: values.update(surplus=1),
        lambda values: values["series"].append(values["series"][0]),
        lambda values: values["series"][0]["values"].pop(),
    ],
)
def test_it_is_read_as_it_was_written_and_what_is_none_is_refused(
    tmp_path: Path, wrong: Callable[[dict[str, Any]], object]
) -> None:
    some().save(path := tmp_path / "results/a.json")
    assert results.load(path) == some()
    wrong(values := json.loads(path.read_text()))
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="no file of results"):
        results.load(path)


def test_every_program_of_a_round_exists() -> None:
    named = {program[0] for number in range(1, ROUNDS + 1) for program in programs(number)}
    assert {name for name in named if not importlib.util.find_spec(f"bench.measure.{name}")} == set()


def test_samples_are_found_among_other_output(capsys: pytest.CaptureFixture[str]) -> None:
    sample.emit("start", 1.5, "s", "lower", what="it")
    output = capsys.readouterr().out
    (found,) = sample.found_in(f"other\n{output}{{}}\n")
    assert found == Sample(measure="start", case={"what": "it"}, unit="s", better="lower", value=1.5)


@pytest.mark.parametrize("task", limit.PARTS)
def test_the_limit_is_what_its_parts_allow(task: str) -> None:
    found, parts = some(), limit.PARTS[task]
    for what, value in {parts.products: 32 / 1e-3, parts.copied: 2.0}.items():
        made.add(found, "limit", [value], what=what)
    assert limit.limit(found, task, 1) == pytest.approx(32_000)
    assert limit.limit(found, task, 2) == pytest.approx(64 / (1e-3 + parts.gradient / 2e9))
    assert limit.limit(found, task, 4) == pytest.approx(128 / (2 * (1e-3 + 1.5 * parts.gradient / 2e9)))


def test_the_goals_of_the_page_are_those_of_the_latest_results() -> None:
    newest = results.load(results.newest())
    page = report.PAGE.read_text()
    assert page == report.with_goals(page, newest, results.newest_on_gpu()), "python -m bench.report writes its goals"


def test_a_goal_is_reached_or_not_by_the_ratio_of_the_same_round_to_each_peer() -> None:
    ours, blogs, peers = ([each, 10 * each, each / 10] for each in (400.0, 90.0, 130.0))
    found = throughputs("mnist-cnn", 1, torchtally=ours, blog=blogs, lightning=peers, accelerate=blogs)
    reached = row(found, "mnist-cnn, 1 rank")
    assert "| 400 [40.0–4,000] | the blog's loop 90.0: 4.44× [4.44–4.44]" in reached
    assert "best peer Lightning 130: 3.08× [3.08–3.08]" in reached and reached.endswith("| ✓ |")
    faster = throughputs("mnist-cnn", 1, torchtally=ours, blog=blogs, lightning=[140, 1400, 14], accelerate=blogs)
    not_measured = throughputs("mnist-cnn", 1, torchtally=ours, blog=blogs, lightning=peers)
    for other in (faster, not_measured):  # what was not measured may be the best
        assert row(other, "mnist-cnn, 1 rank").endswith("| – |")


@pytest.mark.parametrize(("most", "mark"), [(7000.0, "✓"), (7100.0, "–")])
def test_a_goal_can_be_a_share_of_the_limit(most: float, mark: str) -> None:
    found, parts = some(world=1), limit.PARTS["fashion-mnist"]
    made.add(found, "limit", [most], what=parts.products)
    made.add(found, "limit", [1.0], what=parts.copied)
    goal = row(found, "fashion-mnist, 1 rank")
    assert goal.split(" | ")[1] == "85% of the limit" and goal.endswith(f"| {mark} |")


@pytest.mark.parametrize(("median", "mark"), [(1000.0, "✓"), (999.0, "–")])
def test_a_larger_model_is_compared_with_the_best_peer_and_the_limit(median: float, mark: str) -> None:
    others = {"lightning": [1000.0] * 3, "blog": [500.0] * 3, "accelerate": [500.0] * 3}
    found = throughputs("gpt-ddp", 4, torchtally=[900.0, median, 1010.0], **others)
    made.add(found, "limit", [1000.0], what=limit.PASSES["gpt-ddp"])
    goal = row(found, "gpt with DDP, 4 ranks")
    assert "best peer Lightning 1,000 [1,000–1,000] | 2,000 (50%) | " in goal and goal.endswith(f"| {mark} |")


@pytest.mark.parametrize(("beyond", "mark"), [(0.99, "✓"), (1.01, "–")])
@pytest.mark.parametrize(
    ("measure", "ours", "other", "most"),
    [
        ("first step of a GPT", {"start": "resumed", "world": 2}, {"start": "cold", "world": 2}, 1.2),
        ("recovery", {"again": "in place", "killed": "x"}, {"again": "containers", "killed": "x"}, 0.5),
    ],
)
def test_a_start_is_compared_with_the_other_of_its_round(
    measure: str, ours: dict[str, str | int], other: dict[str, str | int], most: float, beyond: float, mark: str
) -> None:
    found, slow = some(), [10.0, 50.0, 20.0]
    made.add(found, measure, [each * most * beyond for each in slow], "lower", **ours)
    made.add(found, measure, slow, "lower", **other)
    assert row(found, f"at most {most:g}×").endswith(f"| {mark} |")


@pytest.mark.parametrize(("most", "said"), [(2000.0, "| 2,000: 1.00× |"), (20000.0, "| 20,000: 10.0× |")])
def test_what_a_pod_costs_the_store_must_not_grow_with_their_number(most: float, said: str) -> None:
    found = made.results()
    for pods, value in {10: 20.0, 100: 200.0, 1000: most}.items():
        made.add(found, "store", [value], "lower", what="heartbeats", pods=pods)
        made.add(found, "store, CPU", [0.5 + pods / 200], "lower", what="heartbeats", pods=pods)
    growth = row(found, "| heartbeats, requests")
    assert said in growth and growth.endswith("| ✓ |" if most == 2000 else "| – |")
    assert "% of pod 0's core | at most 100 | 50.5 | – | – | ✓ |" in row(found, "| heartbeats of 10,000 pods")


@pytest.mark.parametrize(
    ("task", "value", "holds"), [("gpt", 0.9, True), ("gpt", 1.1, False), ("fashion-mnist", 2.9, True)]
)
def test_what_an_account_adds_to_a_step_is_a_goal_of_each_task(task: str, value: float, holds: bool) -> None:
    found = made.results()
    made.add(found, "added to a step by an account", [value], task=task)
    assert ("✓" in row(found, f"% of a step of {task}")) is holds
