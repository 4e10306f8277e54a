"""A run that was resumed with more epochs: its proof covers all attempts, and only where the plan has grown."""

from typing import Any

import bruteforce
import pytest
from bruteforce import Line
from judged import read

from torchtally.verifier.verdict import Verdict, judge


def attempt(number: int, epochs: int, first: int, to: int, **values: Any) -> list[Line]:
    """The lines of one attempt, which plans `epochs` and makes some of them, and its last line if it makes them all."""
    lines = bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=1767323045000 + number, **values)
    return [line for line in lines if line["phase"] != "all" and first <= line["epoch"] <= to]


def ended(number: int, epochs: int, stopped: str | None = None, end: tuple[int, int] | None = None) -> Line:
    ends = {"train": end} if end else None
    lines = bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=1767323045000 + number, ends=ends)
    return bruteforce.last(lines, ends=ends, **({"stopped": stopped} if stopped else {}))


def verdict(*lines: Line) -> Verdict:
    [found] = judge(read(bruteforce.text(list(lines))))
    return found


FIRST, SECOND = attempt(0, 2, 1, 2), attempt(1, 4, 3, 4)


def test_the_proof_covers_the_epochs_of_both_plans() -> None:
    for lines in (
        [*FIRST, *SECOND],
        [*FIRST, ended(0, 2), *SECOND, ended(1, 4)],
        [*FIRST, *SECOND, ended(1, 4)],
        [*FIRST, ended(0, 2), ended(1, 4)],
    ):
        found = verdict(*lines)
        assert found.holds, found.problems
        assert (found.last.plan if found.last else found.lines[-1].plan) == {"train": 4}
    assert "attempt 0 planned 2 epochs of train (now 4)" in verdict(*FIRST, *SECOND).notes


def test_what_the_longer_plan_lacks_is_missing() -> None:
    assert not verdict(*FIRST, ended(0, 2), *attempt(1, 4, 3, 3)).holds
    assert not verdict(*FIRST, *attempt(1, 4, 3, 3)).holds
    assert not verdict(*attempt(0, 2, 1, 1), *SECOND).holds
    assert verdict(*FIRST, ended(0, 2)).holds


def test_a_plan_may_grow_in_its_evaluation_alone() -> None:
    def evaluated(number: int, tests: int, *epochs: int) -> list[Line]:
        plan = {"train": 2, "test": tests}
        lines = bruteforce.run(world=2, plan=plan, attempt=number, began=1767323045000 + number)
        return [line for line in lines if line["phase"] == "test" and line["epoch"] in epochs]

    first = [line | {"plan": {"train": 2, "test": 1}} for line in FIRST] + evaluated(0, 1, 1)
    assert verdict(*first, *evaluated(1, 2, 2)).holds
    assert verdict(*first, *evaluated(1, 3, 2, 3)).holds
    for lacking in (evaluated(1, 3, 2), evaluated(1, 3, 3)):
        [problem] = verdict(*first, *lacking).problems
        assert str(problem).startswith("test: no tally line of epoch ")


def test_a_plan_that_shrank_or_differs_within_an_attempt_is_not_proved() -> None:
    assert not verdict(*attempt(0, 4, 1, 2), *attempt(1, 3, 3, 3)).holds
    assert not verdict(*attempt(0, 2, 1, 2), *attempt(0, 4, 3, 4)).holds
    assert not verdict(*FIRST, ended(1, 2), *SECOND, ended(1, 4)).holds
    assert not verdict(*attempt(0, 3, 1, 1), *attempt(1, 2, 2, 2), *attempt(2, 4, 3, 4)).holds


@pytest.mark.parametrize("last", [[], [ended(1, 4)]])
def test_ranks_of_one_attempt_have_one_plan(last: list[Line]) -> None:
    odd = attempt(0, 3, 1, 2)[1]
    found = verdict(FIRST[0], odd, *FIRST[2:], *SECOND, *last)
    assert any(str(problem).startswith("the lines disagree on plan") for problem in found.problems)


@pytest.mark.parametrize("name", ["task", "seed", "n", "contract", "order", "data"])
def test_the_last_lines_before_and_after_are_of_one_run(name: str) -> None:
    before, other = ended(0, 2), {"task": "x", "seed": 1, "n": 61, "contract": "padded", "order": "sequential"}
    (before if name in before else before["phases"]["train"])[name] = other.get(name, "sha256:0")
    for lines in ([before, ended(1, 4)], [ended(1, 4), before]):
        [problem] = [str(each) for each in verdict(*lines).problems if "is printed twice and differs" in each.text]
        assert name in problem


def test_a_last_line_before_must_be_right() -> None:
    before = ended(0, 2)
    before["phases"]["train"]["consumed"] = 119
    said = "attempt 0, train: the last line reports consumed 119, but epochs 1-2 of N 60 under exact make 120"
    assert said in map(str, verdict(before, ended(1, 4)).problems)
    before = ended(0, 2) | {"worlds": [[1, 0, 3]]}
    assert verdict(before, ended(1, 4)).holds
    [problem] = verdict(*FIRST, before, *SECOND, ended(1, 4)).problems
    assert str(problem).startswith("attempt 0, train: the last line reports world 3, but 2 is in the lines of ")


def test_an_end_that_a_later_attempt_reached_again_with_fewer_epochs_is_no_end() -> None:
    for lines in ([ended(0, 2), ended(1, 4), ended(2, 2)], [ended(0, 2), ended(2, 2), ended(1, 4)]):
        assert not verdict(*lines).holds
    assert not verdict(ended(0, 2) | {"began": 1767323099999}, ended(1, 4)).holds
    assert verdict(ended(0, 2), ended(1, 2), ended(2, 4)).holds
    assert verdict(ended(0, 2), ended(1, 4) | {"began": 0}).holds


def test_a_run_that_stops_after_it_has_grown() -> None:
    for end, epochs in ((3, 0), 2), ((3, 30), 3):
        found = verdict(*FIRST, ended(0, 2), ended(1, 4, stopped="patience", end=end))
        assert found.holds, found.problems
        assert found.last and found.last.epochs("train") == epochs
    assert not verdict(*FIRST, ended(0, 2), ended(1, 4, stopped="patience", end=(2, 30))).holds
