"""A run that was resumed with more epochs: its proof covers all attempts, and only where the plan has grown."""

import copy
from typing import Any

import bruteforce
from bruteforce import BEGAN, Line
from histories import History, restarted
from hypothesis import given
from hypothesis import strategies as st
from judged import read

from torchtally.proof.contract import CONTRACTS
from torchtally.verifier.verdict import Verdict, judge


def attempt(number: int, epochs: int, first: int, to: int, **values: Any) -> list[Line]:
    """The lines of one attempt, which plans `epochs` and makes some of them, and its last line if it makes them all."""
    lines = bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=BEGAN + number, **values)
    return [line for line in lines if line["phase"] != "all" and first <= line["epoch"] <= to]


def ended(number: int, epochs: int) -> Line:
    """The last line of an attempt that makes all epochs of its plan."""
    return bruteforce.last(bruteforce.run(world=2, plan={"train": epochs}, attempt=number, began=BEGAN + number))


def verdict(*lines: Line) -> Verdict:
    [found] = judge(read(bruteforce.text(list(lines))))
    return found


FIRST, SECOND = attempt(0, 2, 1, 2), attempt(1, 4, 3, 4)


def test_epochs_of_a_shorter_plan_are_noted() -> None:
    assert "attempt 0 planned 2 epochs of train (now 4)" in verdict(*FIRST, *SECOND).notes


def test_a_plan_that_shrank_or_differs_within_an_attempt_is_not_proved() -> None:
    assert not verdict(*attempt(0, 4, 1, 2), *attempt(1, 3, 3, 3)).holds
    assert not verdict(*attempt(0, 2, 1, 2), *attempt(0, 4, 3, 4)).holds
    assert not verdict(*FIRST, ended(1, 2), *SECOND, ended(1, 4)).holds
    assert not verdict(*attempt(0, 3, 1, 1), *attempt(1, 2, 2, 2), *attempt(2, 4, 3, 4)).holds
    plans = [{"train": 2, "test": 2}, {"train": 3, "test": 1}]
    both = [bruteforce.run(world=2, plan=plan, attempt=at, began=BEGAN + at) for at, plan in enumerate(plans)]
    assert not verdict(*(each for each in both[0] if each["epoch"] == 1), *(e for e in both[1] if e["epoch"] > 1)).holds


def test_ranks_of_one_attempt_have_one_plan() -> None:
    lines = [FIRST[0], attempt(0, 3, 1, 2)[1], *FIRST[2:], *SECOND]
    for each in lines, [*lines, ended(1, 4)]:
        assert any(str(problem).startswith("the lines disagree on plan") for problem in verdict(*each).problems)


def test_a_run_that_stopped_before_its_shorter_plan_was_made_has_not_grown() -> None:
    ends = {"train": (2, 30)}
    lines = bruteforce.run(world=2, plan={"train": 4}, attempt=1, began=BEGAN + 1, ends=ends)
    assert not verdict(*FIRST, ended(0, 2), bruteforce.last(lines, ends=ends, stopped="patience")).holds


@given(restarted(grown=True).filter(lambda run: run.before), st.data())
def test_the_last_line_before_is_of_the_same_run(run: History, data: st.DataObject) -> None:
    for name in ("task", "seed", "plan", "n", "contract", "order", "data"):
        [before] = copy.deepcopy(run.before)
        at = before if name in before else before["phases"][data.draw(st.sampled_from(sorted(before["phases"])))]
        contracts = [each for each in CONTRACTS if each != at.get("contract")]
        others = {"contract": data.draw(st.sampled_from(contracts)), "task": "another", "data": "another"}
        others["order"] = "feistel-1" if at.get("order") == "sequential" else "sequential"
        others["plan"] = {**run.last["plan"], "train": 99}
        at[name] = others.get(name) or at[name] + 1
        assert not verdict(before, run.last).holds, name
        assert not verdict(run.last, before).holds, name


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
