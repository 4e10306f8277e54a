"""A run that was resumed with more epochs: its proof covers all attempts, and only where the plan has grown."""

from typing import Any

import bruteforce
from bruteforce import Line
from judged import read

from verify.verdict import Verdict, judge


def attempt(number: int, epochs: int, first: int, to: int, **values: Any) -> list[Line]:
    """The lines of one attempt, which plans `epochs` and makes some of them, and its last line if it makes them all."""
    lines = bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=1767323045000 + number, **values)
    return [line for line in lines if line["phase"] != "all" and first <= line["epoch"] <= to]


def ended(number: int, epochs: int) -> Line:
    lines = bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=1767323045000 + number)
    return bruteforce.last([line for line in lines if line["phase"] != "all"])


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
    assert "attempt 0 planned 2 epochs of train, which are 4 now" in verdict(*FIRST, *SECOND).notes


def test_what_the_longer_plan_lacks_is_missing() -> None:
    assert not verdict(*FIRST, ended(0, 2), *attempt(1, 4, 3, 3)).holds
    assert not verdict(*FIRST, *attempt(1, 4, 3, 3)).holds
    assert not verdict(*attempt(0, 2, 1, 1), *SECOND).holds
    assert verdict(*FIRST, ended(0, 2)).holds


def test_a_plan_that_shrank_or_differs_within_an_attempt_is_not_proved() -> None:
    assert not verdict(*attempt(0, 4, 1, 2), *attempt(1, 3, 3, 3)).holds
    assert not verdict(*attempt(0, 2, 1, 2), *attempt(0, 4, 3, 4)).holds
    assert not verdict(*FIRST, ended(1, 2), *SECOND, ended(1, 4)).holds
