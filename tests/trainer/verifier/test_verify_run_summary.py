"""The last line of a run: what it proves alone, and with as many of the other lines as there are."""

import copy
import json
from dataclasses import replace
from typing import Any

import bruteforce
import pytest
from bruteforce import MODEL, Line
from histories import REASON, History, contracts, histories, resumed
from hypothesis import given
from hypothesis import strategies as st
from judged import NO_TEXTS, line, no_integers, no_lists, read, sentences, verdict, verdicts, with_word

from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.proofs.last_line import summary_of
from torchtally.proof.worlds import World
from torchtally.verifier import report
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.verdict import judge

PROOF_ENOUGH = "; the run's last line is proof enough"
LINES = bruteforce.run()
LAST = bruteforce.last(LINES)


# Runs that hold


@given(histories(), st.data())
def test_it_proves_a_faithful_run_with_whatever_other_lines_there_are(run: History, data: st.DataObject) -> None:
    last = run.last
    assert sentences([*run.before, *run.lines, last]) == [] == sentences([*run.before, last])
    found = verdict([*run.lines, last])
    assert found.holds and all(" planned " in note for note in found.notes)
    there = [each for each in run.lines if data.draw(st.booleans())]
    found = verdict([*there, last])
    assert found.holds
    assert all(note.endswith(PROOF_ENOUGH) or " planned " in note for note in found.notes)
    assert there == run.lines or any(note.endswith(PROOF_ENOUGH) for note in found.notes)
    assert report.as_text([found], encoding="utf-8", colour=False).endswith(f"; stopped: {REASON}") == bool(run.ends)


def made_by_the_trainer(lines: list[Line], worlds: dict[str, list[World]]) -> dict[str, Any]:
    """The last line after these lines of all ranks together, with the worlds of each phase."""
    phases: dict[str, PhaseState] = {}
    for each in lines:
        facts = {name: each[name] for name in ("n", "contract", "order", "data")}
        phases[each["phase"]] = phases.get(each["phase"], PhaseState.beginning(**facts)).after(each)
    phases = {name: replace(phase, worlds=tuple(worlds[name])) for name, phase in phases.items()}
    common = {name: lines[-1][name] for name in ("run", "attempt", "pod", "task", "plan", "seed")}
    run = Run(**common, began=lines[-1].get("began", 0), rank=0, world=1, data="")
    return summary_of(run, phases, None, (), 0, MODEL).printed()


@given(histories())
def test_it_is_the_line_that_the_trainer_makes(run: History) -> None:
    together = [each for each in run.lines if each["rank"] == "all"]
    if run.own:  # what is shared out as by the run is not stated again
        worlds = {phase: bruteforce.shared_out(run.lines, phase) for phase in run.own}
        made = made_by_the_trainer(together, worlds)
        assert sentences([*run.lines, made]) == [] == sentences([made])
        assert "worlds" not in made["phases"]["train"]
    elif not run.ends:
        anew = [*{epoch: (epoch, 0, ranks) for epoch, _, ranks in run.worlds}.values()]
        made = made_by_the_trainer(together, {each["phase"]: anew for each in together} | {"train": run.worlds})
        assert made == run.last
        assert list(made) == list(run.last)


def test_a_phase_states_its_worlds_where_they_are_not_those_of_the_run() -> None:
    together = [each for each in bruteforce.run(plan={"train": 3, "test": 3}) if each["rank"] == "all"]
    worlds = [(1, 0, 4), (2, 9, 3)]
    same = made_by_the_trainer(together, {"train": worlds, "test": [(1, 0, 4), (2, 0, 3)]})  # a test begins anew
    assert [phase.get("worlds") for phase in same["phases"].values()] == [None, None]
    other = made_by_the_trainer(together, {"train": worlds, "test": [(1, 0, 4), (2, 7, 3)]})
    assert [phase.get("worlds") for phase in other["phases"].values()] == [None, [[1, 0, 4], [2, 7, 3]]]


@given(st.data(), st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), contracts)
def test_it_binds_what_each_epoch_has_dropped(
    data: st.DataObject, n: int, epochs: int, world: int, contract: str
) -> None:
    def drops(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted({*shard})), unique=True)) if shard else []

    lines = bruteforce.run(n, world, contract, plan={"train": epochs, "test": epochs}, drops=drops)
    last = bruteforce.last(lines)
    assert sentences([*lines, last]) == [] == sentences([last])
    for phase, stated in last["phases"].items():
        if "dropped" in stated:
            more = data.draw(st.sampled_from([number for number in range(-2, 3) if number]))
            other = copy.deepcopy(last)
            other["phases"][phase]["dropped"] = max(1, stated["dropped"] + more)
            other["phases"][phase]["consumed"] -= other["phases"][phase]["dropped"] - stated["dropped"]
            assert other == last or sentences([other])
            if "dropped_in" in stated:
                runs = other["phases"][phase]["dropped_in"]
                run = data.draw(st.sampled_from(runs))
                run[1] = max(0, run[1] + more)
                other["phases"][phase]["dropped"] = max(1, sum(count * number for count, number in runs))
                total = other["phases"][phase]["dropped"] - stated["dropped"]
                other["phases"][phase]["consumed"] = stated["consumed"] - total
                assert other == last or sentences([other])


@given(resumed(), st.data())
def test_no_worlds_of_a_phase_hide_what_was_lost(run: History, data: st.DataObject) -> None:
    """What a last line lacks stays lacking, whichever way its phase is said to have been shared out."""
    lines = run.lines
    losing = data.draw(st.sampled_from([each for each in lines if each["rank"] == "all"]))
    epochs, n = losing["plan"][losing["phase"]], losing["n"]
    words = bruteforce.decoded(losing["digest"])
    x = 1 + data.draw(st.integers(0, n - 1))
    gone = [pow(x, k, bruteforce.P) for k in range(16)]
    words = [(word - less) % bruteforce.P for word, less in zip(words, [*gone, 0, 0, 0, 0], strict=True)]
    faulty = losing | {"consumed": losing["consumed"] - 1, "digest": bruteforce.encoded(words)}
    last = bruteforce.last([faulty if each is losing else each for each in lines], own=run.own)
    places = st.tuples(st.integers(1, epochs), st.integers(0, n - 1))
    others = sorted(data.draw(st.lists(places, unique=True, max_size=4)))
    worlds = [
        [*place, data.draw(st.integers(1, 9))] for place in [(1, 0), *(each for each in others if each != (1, 0))]
    ]
    last["phases"][losing["phase"]]["worlds"] = worlds
    assert not verdict([last]).holds
    assert not verdict([*lines, last]).holds


def test_what_is_missing_is_a_note() -> None:
    rank_0_to_1 = [each for each in LINES if each["rank"] in (0, 1)]
    assert verdict([*rank_0_to_1, LAST]).notes == [
        f"no tally line of ranks 2-3 and all ranks together at all{PROOF_ENOUGH}"
    ]
    second = [each for each in LINES if each["epoch"] == 2]
    assert verdict([*second, LAST]).notes == [
        f"train: no tally line of epoch 1, 2 planned{PROOF_ENOUGH}",
        f"test: no tally line of epoch 1, 2 planned{PROOF_ENOUGH}",
    ]


def test_what_is_missing_alike_in_many_epochs_is_one_note() -> None:
    lines = bruteforce.run(plan={"train": 5, "test": 5})
    there = [each for each in lines if each["epoch"] > 4 or each["rank"] == "all"]
    assert verdict([*there, bruteforce.last(lines)]).notes == [
        f"train epochs 1-4, test epochs 1-4: no tally line of ranks 0-3{PROOF_ENOUGH}"
    ]


def test_each_pod_s_samples_are_in_its_own_lines_alone() -> None:
    assert sentences([*LINES, LAST], expect_per_pod=15) == []
    assert sentences([*(each for each in LINES if each["rank"] != 2), LAST], expect_per_pod=15) == [
        "no tally line of rank 2 at all"
    ]
    found = sentences([LAST], expect_per_pod=15)
    assert found[0] == "no tally line of phase train at all, epochs 1-2 planned"
    assert found[-1] == "no tally line of phase train, so --expect-per-pod has nothing to check"


def test_a_million_epochs_take_no_time_under_exact() -> None:
    h = bruteforce.base(bruteforce.RUN + " epochs")
    sum_of_powers = sum_ = 0
    for epoch in range(1, 1001):
        sum_of_powers = (sum_of_powers + pow(h, epoch, bruteforce.P)) % bruteforce.P
    factor = pow(h, 1000, bruteforce.P)
    power = 1
    for _ in range(1000):  # Σ over thousands: each is the first one times h to the power of 1000
        sum_ = (sum_ + sum_of_powers * power) % bruteforce.P
        power = power * factor % bruteforce.P
    plan = {"train": 10**6}
    once = bruteforce.run(plan={"train": 1})
    last = bruteforce.last(once, plan=plan, worlds=[[1, 0, 4], [700_000, 31, 3]])
    words = bruteforce.decoded(line(once, "all")["digest"])
    last["phases"]["train"] |= {
        "consumed": 60 * 10**6,
        "digest": bruteforce.encoded([word * sum_ % bruteforce.P for word in words]),
    }
    assert sentences([last]) == []
    last["phases"]["train"]["digest"] = with_word(last["phases"]["train"]["digest"], 3, 1)
    said = "train: the last line's digest is not that of epochs 1-1000000 of N 60 under exact: it differs in S_3"
    assert sentences([last])[-1] == said


# Runs that do not


def test_without_a_proof_in_it_missing_lines_are_missed() -> None:
    last = copy.deepcopy(LAST)
    last["phases"]["train"]["consumed"] += 1
    found = sentences([*LINES[1:], last])
    assert "train epoch 1: no tally line of rank 0" in found
    assert "train: the last line reports consumed 121, but epochs 1-2 of N 60 under exact make 120" in found
    assert "train: the last line reports consumed 121, but the lines of all ranks together add up to 120" in found
    assert sentences([*LINES, last]) == [each for each in found if "no tally line" not in each]


@given(histories(), st.data(), st.integers(0, 19), st.integers(1, bruteforce.P - 1))
def test_any_single_changed_word_is_found(run: History, data: st.DataObject, word: int, more: int) -> None:
    last = run.last
    phase = last["phases"][data.draw(st.sampled_from(sorted(last["phases"])))]
    phase["digest"] = with_word(phase["digest"], word, more)
    assert any(f"it differs in {WORDS[word]}" in each for each in sentences([last]))
    assert any(
        f"digest is not the sum of the lines of all ranks together: it differs in {WORDS[word]}" in each
        for each in sentences([*run.lines, last])
    )


WORDS = [*(f"S_{k}" for k in range(16)), "G", "I_1", "I_2", "I_3"]


@given(histories(), st.data())
def test_any_changed_value_contradicts_the_lines_of_all_ranks_together(run: History, data: st.DataObject) -> None:
    together = [each for each in run.lines if each["rank"] == "all"]
    others: dict[str, Any] = {"plan": {**run.last["plan"], "more": 1}, "task": "another", "data": "another"}
    for name in ("task", "plan", "seed", "n", "contract", "order", "data", "consumed"):
        last = run.last
        at = last if name in last else last["phases"][data.draw(st.sampled_from(sorted(last["phases"])))]
        choices = ["exact", "padded", "drop_last"] if name == "contract" else ["feistel-1", "sequential"]
        other = others.get(name) or (at[name] + 1 if isinstance(at[name], int) else None)
        at[name] = other or data.draw(st.sampled_from([each for each in choices if each != at[name]]))
        assert not verdict([*together, last]).holds, name
        assert name != "consumed" or not verdict([last]).holds
    for name in ("start", "world"):
        lines = copy.deepcopy(together)
        each = lines[-1]  # an earlier attempt may have been superseded
        each[name] = (each["start"] + 1) % each["n"] if name == "start" else each["world"] + 1
        assert lines == together or not verdict([*lines, run.last]).holds, name  # one sample has one start


def test_a_fault_of_an_epoch_s_line_is_a_problem_still() -> None:
    lines = copy.deepcopy(LINES)
    bad = line(lines, 1, "test", 2)
    bad["consumed"] += 1
    for each in [bad, LAST], [*lines, LAST]:
        assert any(said.startswith("test epoch 2: rank 1 consumed") for said in sentences(each))


def test_lines_that_disagree_with_it() -> None:
    lines = [each | {"n": 61} for each in LINES if (each["phase"], each["epoch"]) == ("train", 1)]
    found = verdict([*lines, LAST])
    said = "the last line reports n 60, but 61 is in the lines of ranks 0-3 and all ranks together in epoch 1"
    assert f"train: {said}" in map(str, found.problems)
    assert found.of(("train", 1)) and not found.of(("train", 2))


def test_worlds_that_do_not_fit_are_found_alone_where_the_contract_depends_on_them() -> None:
    worlds = [(1, 0, 4), (2, 20, 3)]
    lines = bruteforce.run(61, contract="padded", worlds=worlds)
    assert sentences([bruteforce.last(lines, worlds)]) == []
    for others in [(1, 0, 4)], [(1, 0, 4), (2, 19, 3)], [(1, 0, 4), (2, 20, 5)], [(1, 0, 2), (2, 20, 3)]:
        assert sentences([bruteforce.last(lines, others)]), others  # 3 are repeated, and then 1


# Several attempts


def test_what_a_later_attempt_did_again_does_not_count_though_its_own_lines_are_gone() -> None:
    worlds = [(1, 0, 4), (2, 20, 3)]
    again = bruteforce.run(61, contract="padded", worlds=worlds)
    first = [each for each in bruteforce.run(61, contract="padded") if each["epoch"] == 2]
    found = verdict([*first, bruteforce.last(again, worlds)])
    assert found.holds and found.attempt == 1 and found.lines == []
    assert found.notes[0] == "10 lines of attempt 0 are superseded: a later attempt resumed before them"
    # Lines of the last attempt itself cannot be of something that was done again.
    late = [each | {"attempt": 1, "began": again[-1]["began"]} for each in first]
    found = sentences([*late, bruteforce.last(again, worlds)])
    assert any(each.startswith("train: the last line reports start 20, but 0 is in the lines of") for each in found)


def test_it_may_be_printed_again_by_a_later_attempt() -> None:
    again = LAST | {"attempt": 3, "pod": "demo-master-7"}
    for both in [LAST, again], [again, LAST]:
        found = verdict([*LINES, *both])
        assert found.holds and found.notes == [] and found.attempt == 0
    assert verdict([*LINES, again]).attempt == 3


def test_it_may_not_be_printed_again_with_other_values() -> None:
    said = "demo.log:22: the last line of run 3f9c2a7b10de is printed twice and differs:"
    others = {"model": None, "task": "mine", "seed": 5, "plan": {"train": 2, "test": 3}, "stopped": REASON}
    of_an_attempt = {"discarded": 4, "worlds": [[1, 0, 4], [2, 1, 4]]}
    for name, value in {**others, **of_an_attempt}.items():
        for attempt in (0, 1) if name in others else (0,):
            [found] = sentences([*LINES, LAST, LAST | {"attempt": attempt, name: value}])
            assert found == f"{said} {name} {json.dumps(LAST.get(name))} and {json.dumps(value)}"
    # Other ranks of a later attempt may have made the end of the run again.
    assert verdict([*LINES, LAST, LAST | {"attempt": 1, **of_an_attempt}]).holds
    other = copy.deepcopy(LAST)
    other["phases"]["train"] |= {"n": 9, "data": "another"}
    other["phases"]["test"]["digest"] = with_word(other["phases"]["test"]["digest"], 16, 1)
    differ = "n of train 60 and 9; data of train sha256:0123456789abcdef and another; digest of test in G"
    assert sentences([*LINES, LAST, other]) == [f"{said} {differ}"]
    # One that says why the run was stopped may lack a phase.
    one, other = ({**LAST, "stopped": REASON, "phases": phases} for phases in (LAST["phases"], {"train": TRAIN}))
    assert sentences([*LINES, one, other]) == [f"{said} phases train, test and train"]


def test_of_two_runs_one_may_be_known_by_its_last_line_alone() -> None:
    other = bruteforce.run(run="another", worlds=[(1, 0, 3)])
    both = [*LINES, LAST, bruteforce.last(other)]
    assert [(each.run, each.holds) for each in verdicts(both)] == [("3f9c2a7b10de", True), ("another", True)]
    assert verdict(both, run="another").holds and verdict(both, run="3f9c2a7b10de").holds


# Lines that are no last line


def test_a_cut_last_line_is_no_proof() -> None:
    text = bruteforce.text([LAST])
    [found] = judge(read(bruteforce.text(LINES) + text[:700] + "\n"))
    assert str(found.problems[0]).startswith("demo.log:21: a tally line is cut off")
    assert found.last is None
    assert json.loads(report.as_json([found]))["last_line"] is False


def test_a_phase_may_be_called_all() -> None:
    lines = bruteforce.run(plan={"train": 1, "all": 1})
    assert verdict([*lines, bruteforce.last(lines)]).outcome is Outcome.PROVED


TRAIN = LAST["phases"]["train"]
WORLDS = "a list of [epoch, position, ranks], the first at epoch 1 and position 0, each later than the one before it, "
WORLDS += "up to epoch 2 and position 60, with 1 to 1000000 ranks"
HUGE = 1 << 63
INTEGERS = {"attempt": (0, HUGE), "began": (0, 253_402_300_799_999), "seed": (0, 2**64 - 1), "discarded": (0, HUGE)}
OF_PHASE = {"n": (1, 2**61 - 2), "consumed": (0, HUGE * 10**6), "dropped": (1, HUGE * 10**6)}
BAD = [(name, value) for name, bounds in INTEGERS.items() for value in no_integers(*bounds)]
BAD += [(name, value) for name in ("run", "pod", "task", "stopped") for value in NO_TEXTS]
BAD += [("model", value) for value in (7, "", MODEL[:-1], MODEL + "0", MODEL.upper())]
BAD += [("plan", {"train": -1}), ("phases", []), ("phases", {}), ("phases", {"train": TRAIN})]
BAD_OF_PHASE = [(name, value) for name, bounds in OF_PHASE.items() for value in no_integers(*bounds)]
BAD_OF_PHASE += [("data", value) for value in NO_TEXTS]
BAD_OF_PHASE += [("contract", "most"), ("order", "feistel-2"), ("digest", ""), ("digest", 5), ("dropped_digest", "")]
BAD_OF_PHASE += [("end", value) for value in no_lists((1, 2), (0, 59))]
BAD_OF_PHASE += [("dropped_in", value) for value in ([], 7, *([each] for each in no_lists((1, 10**6), (0, 2**61 - 2))))]
BAD_WORLDS: list[Any] = [[], 7, None, [[1, 1, 4]], [[2, 0, 4]], [[1, 0, 4], [1, 0, 3]]]
BAD_WORLDS += [[[1, 0, 4], [2, 5, 3], [2, 5, 2]], [[1, 0, 4], [2, 5, 3], [2, 4, 2]]]
BAD_WORLDS += [[[1, 0, 4], each] for each in no_lists((1, 2), (0, 60), (1, 10**6))]


def test_values_that_cannot_be() -> None:
    for name, value in [*BAD, *(("worlds", each) for each in BAD_WORLDS)]:
        [found] = sentences([LAST | {name: value}])
        assert found.startswith(f'demo.log:1: bad tally line: "{name}" is {json.dumps(value)[:60]}'), found
    for name, value in [*BAD_OF_PHASE, *(("worlds", each) for each in BAD_WORLDS)]:
        [found] = sentences([LAST | {"phases": {"train": TRAIN | {name: value}, "test": TRAIN}}])
        assert found.startswith(f'demo.log:1: bad tally line: "phases.train.{name}" is {json.dumps(value)[:60]}'), found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"v": 3}, "version 3 of the line is not known here"),
        ({"worlds": []}, f'"worlds" is [], allowed is {WORLDS}'),
        ({"model": 7}, '"model" is 7, allowed is null, or "sha256:" and 64 hexadecimal digits'),
        ({"plan": {}, "phases": {}}, '"phases" is {}, allowed is an object that has the phases of the plan'),
        ({"plan": {"train": 2, "test": 0}}, '"phases" is {"train": {"n": 60, '),
        ({"phases": {"train": TRAIN, "test": 7}}, '"phases.test" is 7, allowed is an object'),
    ],
)
def test_what_is_allowed_is_said(values: Line, said: str) -> None:
    [found] = sentences([LAST | values])
    assert found.startswith(f"demo.log:1: bad tally line: {said}")


def test_a_value_that_is_missing() -> None:
    for name in LAST.keys() - {"v", "phase", "began"}:
        found = sentences([{key: value for key, value in LAST.items() if key != name}])
        assert found == [f'demo.log:1: bad tally line: "{name}" is missing']
    for name in TRAIN:
        last = LAST | {"phases": {"train": {key: value for key, value in TRAIN.items() if key != name}, "test": TRAIN}}
        assert sentences([last]) == [f'demo.log:1: bad tally line: "phases.train.{name}" is missing']
