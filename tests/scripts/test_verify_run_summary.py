"""The last line of a run: what it proves alone, and with as many of the other lines as there are."""

import copy
import json
from typing import Any

import bruteforce
import pytest
from bruteforce import Line, World
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import UNKNOWN, line, read, sentences, verdict, verdicts

from torchtally.proof import run_summary
from torchtally.verifier.verdict import judge
from verify import report

PROOF_ENOUGH = "; the run's last line is proof enough"
contracts = st.sampled_from(["exact", "padded", "drop_last"])
LINES = bruteforce.run()
LAST = bruteforce.last(LINES)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Line], list[World]]:
    """The lines of a faithful run over several starts, and where its number of ranks became another."""
    n, epochs = draw(st.integers(1, 60), "n"), draw(st.integers(1, 4), "epochs")
    places = st.tuples(st.integers(1, epochs), st.integers(0, n - 1)).filter(lambda place: place != (1, 0))
    later = sorted(draw(st.lists(places, unique=True, max_size=4)))
    worlds = [(*place, draw(st.integers(1, 7))) for place in [(1, 0), *later]]
    plan = {"train": epochs, "test": draw(st.integers(0, epochs))}
    lines = bruteforce.run(n, contract=draw(contracts), seed=draw(st.integers(0, 99)), plan=plan, worlds=worlds)
    return lines, worlds


# Runs that hold


@settings(deadline=None)
@given(runs(), st.data())
def test_it_proves_a_faithful_run_with_whatever_other_lines_there_are(
    run: tuple[list[Line], list[World]], data: st.DataObject
) -> None:
    lines, worlds = run
    last = bruteforce.last(lines, worlds)
    assert sentences([*lines, last]) == [] == verdict([*lines, last]).notes
    assert sentences([last]) == []
    there = [each for each in lines if data.draw(st.booleans())]
    found = verdict([*there, last])
    assert found.holds
    assert all(note.endswith(PROOF_ENOUGH) or note.endswith("went back") for note in found.notes)
    assert bool(found.notes) == (there != lines)


@settings(deadline=None)
@given(runs())
def test_it_is_the_line_that_the_trainer_makes(run: tuple[list[Line], list[World]]) -> None:
    lines, worlds = run
    made = run_summary.line([each for each in lines if each["rank"] == "all"], worlds, bruteforce.MODEL, 0)
    assert made == bruteforce.last(lines, worlds)
    assert list(made) == list(bruteforce.last(lines, worlds))


@settings(deadline=None)
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


@st.composite
def resumed(draw: st.DrawFn) -> list[Line]:
    """The lines of a faithful run of which any phase may have been resumed in its middle, by any number of ranks."""
    n, plan = draw(st.integers(1, 60), "n"), {"train": draw(st.integers(1, 3)), "test": draw(st.integers(0, 3))}
    blocks = [(phase, epoch) for phase, epochs in plan.items() for epoch in range(1, epochs + 1)]
    begins = {
        (phase, epoch): (
            draw(st.integers(0, (n if phase == "train" else max(1, n // 6)) - 1)),
            draw(st.integers(1, 7)),
        )
        for phase, epoch in draw(st.lists(st.sampled_from(blocks), unique=True, max_size=3))
    }
    common = {"contract": draw(contracts), "seed": draw(st.integers(0, 99)), "commits": draw(st.booleans())}
    return bruteforce.run(n, plan=plan, resumed=begins, **common)


@settings(deadline=None)
@given(resumed(), st.data())
def test_it_proves_a_run_whose_phases_were_shared_out_differently(lines: list[Line], data: st.DataObject) -> None:
    own = tuple(dict.fromkeys(each["phase"] for each in lines))
    last = bruteforce.last(lines, own=own)
    assert sentences([*lines, last]) == [] == sentences([last])
    there = [each for each in lines if data.draw(st.booleans())]
    assert verdict([*there, last]).holds
    worlds = {phase: bruteforce.shared_out(lines, phase) for phase in own}
    together = [each for each in lines if each["rank"] == "all"]
    made = run_summary.line(together, worlds["train"], bruteforce.MODEL, 0, worlds)
    assert sentences([*lines, made]) == [] == sentences([made])
    assert "worlds" not in made["phases"]["train"]
    # Lines of all ranks of one phase and epoch, one of which says that it began elsewhere, contradict it.
    other = data.draw(st.sampled_from(together))
    moved = (other["start"] + 1) % other["n"]
    if moved != other["start"]:
        other["start"] = moved
        assert not verdict([*lines, last]).holds


@settings(deadline=None)
@given(resumed(), st.data())
def test_no_worlds_of_a_phase_hide_what_was_lost(lines: list[Line], data: st.DataObject) -> None:
    """What a last line lacks stays lacking, whichever way its phase is said to have been shared out."""
    phases = tuple(dict.fromkeys(each["phase"] for each in lines))
    losing = data.draw(st.sampled_from([each for each in lines if each["rank"] == "all"]))
    epochs, n = losing["plan"][losing["phase"]], losing["n"]
    words = bruteforce.decoded(losing["digest"])
    x = 1 + data.draw(st.integers(0, n - 1))
    gone = [pow(x, k, bruteforce.P) for k in range(16)]
    words = [(word - less) % bruteforce.P for word, less in zip(words, [*gone, 0, 0, 0, 0], strict=True)]
    faulty = losing | {"consumed": losing["consumed"] - 1, "digest": bruteforce.encoded(words)}
    last = bruteforce.last([faulty if each is losing else each for each in lines], own=phases)
    places = st.tuples(st.integers(1, epochs), st.integers(0, n - 1))
    others = sorted(data.draw(st.lists(places, unique=True, max_size=4)))
    worlds = [
        [*place, data.draw(st.integers(1, 9))] for place in [(1, 0), *(each for each in others if each != (1, 0))]
    ]
    last["phases"][losing["phase"]]["worlds"] = worlds
    assert not verdict([last]).holds
    assert not verdict([*lines, last]).holds


def test_lines_that_its_worlds_of_a_phase_contradict() -> None:
    lines = bruteforce.run(resumed={("test", 2): (4, 3)})
    last = bruteforce.last(lines, own=("test",))
    assert last["phases"]["test"]["worlds"] == [[1, 0, 4], [2, 0, 3], [2, 4, 3]]
    assert sentences([*lines, last]) == []
    for worlds, said in [
        ([[1, 0, 4], [2, 3, 3]], "start 3, but 4"),
        ([[1, 0, 4], [2, 4, 2]], "world 2, but 3"),
        ([[1, 0, 4]], "start 0, but 4"),
    ]:
        last["phases"]["test"]["worlds"] = worlds
        assert any(
            each.startswith(f"test: the last line reports {said} is in the") for each in sentences([*lines, last])
        )


def test_two_that_differ_in_the_worlds_of_a_phase() -> None:
    own = bruteforce.last(LINES, own=("test",))
    said = "demo.log:22: the last line of run 3f9c2a7b10de is printed twice and differs: worlds of test None and "
    assert sentences([*LINES, LAST, own]) == [f"{said}[[1, 0, 4], [2, 0, 4]]"]


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


def with_word(digest: str, word: int, more: int) -> str:
    words = bruteforce.decoded(digest)
    words[word] = (words[word] + more) % bruteforce.P
    return bruteforce.encoded(words)


# Runs that do not


def lazy(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    """What is lost in the first epoch is doubled in the second."""
    return shard if rank != 1 or phase != "train" else shard[1:] if epoch == 1 else [*shard, shard[0]]


def test_a_run_that_lost_a_sample_does_not_hold_by_its_last_line() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[phase == "test" and rank == 2 :])
    found = sentences([bruteforce.last(lines)])
    assert "test: the last line reports consumed 18, but epochs 1-2 of N 10 under exact make 20" in found
    said = "test: the last line's digest is not that of epochs 1-2 of N 10 under exact: it differs in S_0, S_1, S_2"
    assert any(each.startswith(said) for each in found)
    assert not any(each.startswith("train") for each in found)


def test_what_is_lost_in_one_epoch_and_doubled_in_another_does_not_cancel() -> None:
    lines = bruteforce.run(order="sequential", plan={"train": 2}, consume=lazy)
    found = sentences([bruteforce.last(lines)])
    assert any("train: the last line's digest is not that of epochs 1-2" in each for each in found)
    assert not any("consumed" in each for each in found)  # as many as there should be


def test_without_a_proof_in_it_missing_lines_are_missed() -> None:
    last = copy.deepcopy(LAST)
    last["phases"]["train"]["consumed"] += 1
    found = sentences([*LINES[1:], last])
    assert "train epoch 1: no tally line of rank 0" in found
    assert "train: the last line reports consumed 121, but epochs 1-2 of N 60 under exact make 120" in found
    assert "train: the last line reports consumed 121, but the lines of all ranks together add up to 120" in found
    assert sentences([*LINES, last]) == [each for each in found if "no tally line" not in each]


@settings(deadline=None)
@given(runs(), st.data(), st.integers(0, 19), st.integers(1, bruteforce.P - 1))
def test_any_single_changed_word_is_found(
    run: tuple[list[Line], list[World]], data: st.DataObject, word: int, more: int
) -> None:
    last = bruteforce.last(*run)
    phase = last["phases"][data.draw(st.sampled_from(sorted(last["phases"])))]
    phase["digest"] = with_word(phase["digest"], word, more)
    assert any(f"it differs in {WORDS[word]}" in each for each in sentences([last]))
    assert any(
        f"digest is not the sum of the lines of all ranks together: it differs in {WORDS[word]}" in each
        for each in sentences([*run[0], last])
    )


WORDS = [*(f"S_{k}" for k in range(16)), "G", "I_1", "I_2", "I_3"]


@settings(deadline=None)
@given(runs(), st.data())
def test_with_the_other_lines_any_changed_value_breaks_the_proof(
    run: tuple[list[Line], list[World]], data: st.DataObject
) -> None:
    lines, worlds = run
    last = bruteforce.last(lines, worlds)
    name = data.draw(st.sampled_from(["task", "plan", "seed", "n", "contract", "order", "data", "consumed"]))
    at = last["phases"][data.draw(st.sampled_from(sorted(last["phases"])))] if name not in last else last
    others = {
        "plan": [{"train": 4, "test": 5}, {**last["plan"], "more": 1}],
        "contract": ["exact", "padded", "drop_last"],
        "order": ["feistel-1", "sequential"],
    }.get(name) or ([at[name] + 1, at[name] * 2 + 1] if isinstance(at[name], int) else ["another"])
    at[name] = data.draw(st.sampled_from([other for other in others if other != at[name]]))
    assert not verdict([*lines, last]).holds


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("phase", ["train", "test"])
def test_a_fault_of_an_epoch_s_line_is_a_problem_still(phase: str, epoch: int) -> None:
    lines = copy.deepcopy(LINES)
    line(lines, 1, phase, epoch)["consumed"] += 1
    alone = [line(lines, 1, phase, epoch), LAST]
    said = f"{phase} epoch {epoch}: rank 1 consumed"
    assert any(each.startswith(said) for each in sentences(alone))
    assert any(each.startswith(said) for each in sentences([*lines, LAST]))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "n",
            61,
            "train: the last line reports n 60, but 61 is in the lines of ranks 0-3 and all ranks together in epoch 1",
        ),
        ("contract", "padded", 'train: the last line reports contract "exact", but "padded" is'),
        ("order", "sequential", 'train: the last line reports order "feistel-1", but "sequential" is'),
        ("data", "sha256:0", 'train: the last line reports data "sha256:0123456789abcdef", but "sha256:0" is'),
        ("seed", 1, "the last line reports seed 0, but 1 is"),
        ("task", "mine", 'the last line reports task "fashion-mnist", but "mine" is'),
        (
            "plan",
            {"train": 2, "test": 3},
            'the last line reports plan {"test": 2, "train": 2}, but {"test": 3, "train": 2}',
        ),
        ("start", 8, "train: the last line reports start 0, but 8 is"),
        ("world", 5, "train: the last line reports world 4, but 5 is"),
    ],
)
def test_lines_that_disagree_with_it(name: str, value: Any, said: str) -> None:
    lines = [each | {name: value} for each in LINES if (each["phase"], each["epoch"]) == ("train", 1)]
    found = verdict([*lines, LAST])
    assert any(str(each).startswith(said) for each in found.problems), found.problems
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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "sha256:" + "0" * 64}, f'model "{bruteforce.MODEL}" and "sha256:{"0" * 64}"'),
        ({"model": None}, f'model "{bruteforce.MODEL}" and null'),
        ({"discarded": 4}, "discarded 0 and 4"),
        ({"worlds": [[1, 0, 4], [2, 1, 4]]}, "worlds [[1, 0, 4]] and [[1, 0, 4], [2, 1, 4]]"),
        ({"task": "mine", "seed": 5}, 'task "fashion-mnist" and "mine"; seed 0 and 5'),
        ({"plan": {"train": 2, "test": 3}}, 'plan {"train": 2, "test": 2} and {"train": 2, "test": 3}'),
    ],
)
@pytest.mark.parametrize("attempt", [0, 1])
def test_it_may_not_be_printed_again_with_other_values(values: Line, said: str, attempt: int) -> None:
    found = sentences([*LINES, LAST, LAST | {"attempt": attempt} | values])
    assert found == [f"demo.log:22: the last line of run 3f9c2a7b10de is printed twice and differs: {said}"]


def test_two_that_differ_are_no_matter_of_attempts() -> None:
    first, third = LAST, LAST | {"attempt": 2, "discarded": 4}
    for both in [first, third], [third, first]:
        later = [each | {"attempt": 3} for each in LINES]
        assert "is printed twice and differs: discarded" in sentences([*later, *both])[0]


def test_the_phases_of_two_that_differ() -> None:
    other = copy.deepcopy(LAST)
    other["phases"]["train"] |= {"n": 9, "data": "another"}
    other["phases"]["test"]["digest"] = with_word(other["phases"]["test"]["digest"], 16, 1)
    said = "n of train 60 and 9; data of train sha256:0123456789abcdef and another; digest of test in G"
    assert sentences([*LINES, LAST, other]) == [
        f"demo.log:22: the last line of run 3f9c2a7b10de is printed twice and differs: {said}"
    ]


def test_of_two_runs_one_may_be_known_by_its_last_line_alone() -> None:
    other = bruteforce.run(run="another", worlds=[(1, 0, 3)])
    both = [*LINES, LAST, bruteforce.last(other)]
    assert [(each.run, each.holds) for each in verdicts(both)] == [("3f9c2a7b10de", True), ("another", True)]
    assert verdict(both, run="another").holds and verdict(both, run="3f9c2a7b10de").holds


# Lines that are no last line


@pytest.mark.parametrize("cut", [60, 200, 700])
def test_a_cut_last_line_is_no_proof(cut: int) -> None:
    text = bruteforce.text([LAST])
    [found] = judge(read(bruteforce.text(LINES) + text[:cut] + "\n"))
    assert str(found.problems[0]).startswith("demo.log:21: a tally line is cut off")
    assert found.last is None
    assert json.loads(report.as_json([found]))["last_line"] is False


def test_a_phase_may_be_called_all() -> None:
    lines = bruteforce.run(plan={"train": 1, "all": 1})
    assert verdict(lines).notes == [UNKNOWN]
    assert verdict([*lines, bruteforce.last(lines)]).notes == []


TRAIN = LAST["phases"]["train"]
WORLDS = "a list of [epoch, position, ranks], the first at epoch 1 and position 0, each later than the one before it, "
WORLDS += "up to epoch 2 and position 59, with 1 to 1000000 ranks"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"v": 3}, "version 3 of the line is not known here"),
        ({"run": 7}, '"run" is 7, allowed is printable text'),
        ({"began": None}, '"began" is null, allowed is an integer from 0 to'),
        ({"began": 10**15}, '"began" is 1000000000000000, allowed is an integer from 0 to 253402300799999'),
        ({"attempt": -1}, '"attempt" is -1, allowed is an integer from 0 to'),
        ({"pod": "\x1b"}, '"pod" is "\\u001b", allowed is printable text'),
        ({"task": ""}, '"task" is "", allowed is printable text'),
        ({"plan": {"train": -1}}, '"plan" is {"train": -1}, allowed is an object that'),
        ({"plan": {"train": 2}}, '"phases" is {"train": {"n": 60, '),
        ({"plan": {"train": 2, "test": 0}}, '"phases" is {"train": {"n": 60, '),
        ({"plan": {}, "phases": {}}, '"phases" is {}, allowed is an object that has the phases of the plan'),
        ({"seed": 2**64}, f'"seed" is {2**64}, allowed is an integer from 0 to'),
        ({"model": 7}, '"model" is 7, allowed is null, or "sha256:" and 64 hexadecimal digits'),
        ({"model": bruteforce.MODEL[:-1]}, '"model" is "sha256:'),
        ({"model": bruteforce.MODEL + "0"}, '"model" is "sha256:'),
        ({"model": bruteforce.MODEL.upper()}, '"model" is "SHA256:'),
        ({"discarded": -1}, '"discarded" is -1, allowed is an integer from 0 to'),
        ({"discarded": None}, '"discarded" is null, allowed is an integer from 0 to'),
        ({"phases": []}, '"phases" is [], allowed is an object that has the phases of the plan'),
        ({"phases": {"train": TRAIN, "test": 7}}, '"phases.test" is 7, allowed is an object'),
        *(
            (
                {"phases": {"train": TRAIN | {name: value}, "test": TRAIN}},
                f'"phases.train.{name}" is {json.dumps(value)}',
            )
            for name, value in [
                ("n", 0),
                ("n", 2**61 - 1),
                ("contract", "most"),
                ("order", "feistel-2"),
                ("data", ""),
                ("consumed", -1),
                ("consumed", 1.0),
                ("digest", ""),
                ("digest", 5),
                ("worlds", None),
                ("worlds", [[1, 0, 4], [3, 0, 4]]),
                ("worlds", [[1, 0, 4], [2, 60, 4]]),
            ]
        ),
        *(
            ({"worlds": worlds}, f'"worlds" is {json.dumps(worlds)}, allowed is {WORLDS}')
            for worlds in (
                [],
                7,
                None,
                [[1, 0]],
                [[1, 0, 4, 4]],
                [[1, 0, True]],
                [[1, 0, 0]],
                [[1, 0, 1_000_001]],
                [[1, 1, 4]],
                [[2, 0, 4]],
                [[1, 0, 4], [3, 0, 4]],
                [[1, 0, 4], [2, 60, 4]],
                [[1, 0, 4], [2, -1, 4]],
                [[1, 0, 4], [1, 0, 3]],
                [[1, 0, 4], [2, 5, 3], [2, 5, 2]],
                [[1, 0, 4], [2, 5, 3], [2, 4, 2]],
                [[1, 0, 4], "[2, 5, 3]"],
            )
        ),
    ],
)
def test_values_that_cannot_be(values: Line, said: str) -> None:
    found = sentences([LAST | values])
    assert len(found) == 1 and found[0].startswith(f"demo.log:1: bad tally line: {said}"), found


@pytest.mark.parametrize("name", sorted(LAST.keys() - {"v", "phase", "began"}))
def test_a_value_that_is_missing(name: str) -> None:
    found = sentences([{key: value for key, value in LAST.items() if key != name}])
    assert found == [f'demo.log:1: bad tally line: "{name}" is missing']


@pytest.mark.parametrize("name", sorted(TRAIN))
def test_a_value_of_a_phase_that_is_missing(name: str) -> None:
    last = copy.deepcopy(LAST)
    del last["phases"]["train"][name]
    assert sentences([last]) == [f'demo.log:1: bad tally line: "phases.train.{name}" is missing']
