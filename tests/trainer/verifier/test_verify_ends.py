"""Plans in steps and runs that were stopped: the first samples of an order are proved, and no end hides a loss."""

import copy

import bruteforce
import pytest
from bruteforce import Line
from histories import REASON, History, restarted
from hypothesis import given
from hypothesis import strategies as st
from judged import line, sentences, verdict, verdicts

from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Shard
from torchtally.verifier import report
from torchtally.verifier.outcome import Outcome

ENDS = {"train": (2, 40)}
PLANNED = bruteforce.run(contract="padded", ends=ENDS)
PLANNED_LAST = bruteforce.last(PLANNED, ends=ENDS, stopped="train: Steps(count=5)")
FEWER = {"train": (2, 40), "test": (2, 0)}
STOPPED = bruteforce.run(plan={"train": 5, "test": 5}, ends=FEWER)
STOPPED_LAST = bruteforce.last(STOPPED, ends=FEWER, stopped=REASON)
ONLY = "only the run's last line, which is missing, can say that the run was stopped there"


def shown(lines: list[Line]) -> list[str]:
    return report.as_text(verdicts(lines), encoding="utf-8", colour=False).splitlines()


# Runs that hold


@given(restarted())
def test_its_lines_prove_it_where_the_plan_is_fulfilled(run: History) -> None:
    assert verdict(run.lines).holds == run.fulfilled
    both = [*run.lines, run.last]
    for row, each in zip(shown(both)[1:], verdict(both).lines, strict=False):
        assert ("every sample" in row) <= (each.end is None), row


# A whole epoch without its last is an end, too, under drop_last.
@given(restarted(st.sampled_from(["exact", "padded"]), ended=True).filter(lambda run: run.ends), st.data())
def test_any_other_end_breaks_the_proof(run: History, data: st.DataObject) -> None:
    lines, ends, last = run.lines, run.ends, run.last
    phase = data.draw(st.sampled_from(sorted(ends)))
    if phase not in last["phases"]:
        return  # it had not begun
    stated, epochs = last["phases"][phase], lines[-1]["plan"][phase]
    places = st.tuples(st.integers(1, epochs), st.integers(0, stated["n"] - 1))
    other = data.draw(places.filter(lambda place: place != ends[phase]) | st.none())
    changed = copy.deepcopy(last)
    if other:
        changed["phases"][phase]["end"] = list(other)
    else:
        del changed["phases"][phase]["end"]
    assert not verdict([changed]).holds
    assert not verdict([*lines, changed]).holds
    epoch = data.draw(st.sampled_from([each["epoch"] for each in lines if each["phase"] == phase]))
    its = [each for each in lines if (each["phase"], each["epoch"]) == (phase, epoch)]
    ends_there = [at for at in range(max(1, its[0]["start"]), its[0]["n"]) if at != its[0].get("end")]
    if ends_there:
        at = data.draw(st.sampled_from(ends_there))
        for each in data.draw(st.sampled_from([*[[each] for each in its], its])):
            each["end"] = at
        assert not verdict(lines).holds
        if its[0]["attempt"] == last["attempt"]:  # a later one may have done it again
            assert not verdict([*lines, last]).holds


@given(st.data(), st.integers(2, 30), st.integers(1, 3), st.integers(1, 4))
def test_an_end_is_no_excuse(data: st.DataObject, n: int, epochs: int, world: int) -> None:
    """Whatever was lost or duplicated, a last line with any end holds only if its epochs consumed just what it says."""
    gone = {epoch: data.draw(st.sets(st.integers(0, n - 1), max_size=3)) for epoch in range(1, epochs + 1)}
    if data.draw(st.booleans()):  # what an end would leave out
        gone[epochs] = {*range(data.draw(st.integers(1, n - 1)), n)}
    twice = data.draw(st.booleans()) and data.draw(st.integers(1, epochs))

    def consume(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        order = bruteforce.order(n, 0, epoch)
        kept = [sample for sample in shard if order.index(sample) not in gone[epoch]]
        return [*kept, *kept[:1]] if (epoch, rank) == (twice, 0) else kept

    lines = bruteforce.run(n, world, plan={"train": epochs}, consume=consume)
    end = data.draw(st.tuples(st.integers(1, epochs), st.integers(0, n - 1)) | st.just((epochs, n - len(gone[epochs]))))
    if end[1] == n:
        return
    last = bruteforce.last(lines, ends={"train": end}, stopped=REASON)
    claimed = [range(n)] * (end[0] - 1) + [range(end[1])] + [range(0)] * (epochs - end[0])
    as_claimed = all({*range(n)} - gone[epoch] == {*claimed[epoch - 1]} for epoch in range(1, epochs + 1))
    duplicated = any(each["duplicated"] for each in lines)
    assert verdict([last]).holds == (as_claimed and not duplicated)
    assert not verdict([*lines, last]).holds  # they say that they are whole


def test_the_row_and_the_sentence_name_what_was_consumed() -> None:
    text = shown([*PLANNED, PLANNED_LAST])
    row = "train      2  all                  4        40        40     0           0  "
    assert f"{row}✓ the first 40 samples of the order exactly once" in text
    made = "train 1 epoch and the first 40 of 60 samples of epoch 2, test "
    assert f"{made}2 epochs, " in text[-1] and text[-1].endswith("; stopped: train: Steps(count=5)")
    assert f"{made}1 of 5 epochs, " in shown([*STOPPED, STOPPED_LAST])[-1]
    ends = {"train": (1, 7), "test": (1, 0)}
    note, said = shown([bruteforce.last(bruteforce.run(ends=ends), ends=ends, stopped=REASON)])
    assert note == "note: no tally line of phase train at all, epoch 1 made; the run's last line is proof enough"
    assert "train the first 7 of 60 samples of epoch 1, test 0 of 2 epochs, " in said


# Without the last line


def test_lines_alone_are_no_proof_of_a_plan_in_steps() -> None:
    found = verdict(PLANNED)
    assert found.holds and found.outcome is Outcome.INCOMPLETE


def test_a_run_that_was_stopped_before_its_plan_is_not() -> None:
    early = f"the epoch ends before position 40 of N 60, though 5 epochs are planned: {ONLY}"
    assert sentences(STOPPED) == [
        "train: no tally line of epochs 3-5, 5 planned",
        "test: no tally line of epochs 2-5, 5 planned",
        f"train epoch 2: {early}",
    ]
    assert f"  ✗ {early}" in "\n".join(shown(STOPPED))
    between = {"train": (3, 0), "test": (2, 0)}
    assert sentences(bruteforce.run(plan={"train": 5, "test": 5}, ends=between)) == [
        "train: no tally line of epochs 3-5, 5 planned",
        "test: no tally line of epochs 2-5, 5 planned",
    ]


# Lines against the last line


def test_lines_of_a_phase_that_it_says_had_not_begun() -> None:
    last = copy.deepcopy(STOPPED_LAST)
    del last["phases"]["test"]
    assert sentences([last]) == []
    assert "test 0 of 5 epochs" in shown([last])[-1]
    found = verdict([*STOPPED, last])
    assert [str(each) for each in found.problems] == [
        "test: the last line reports 0 epochs, but there are lines of ranks 0-3 and all ranks together in epoch 1"
    ]
    assert found.of(("test", 1)) and not found.of(("train", 1))


def test_what_an_earlier_attempt_did_beyond_the_end_does_not_count() -> None:
    """Attempt 0 was killed in epoch 4; the next one went back into epoch 2, and the program stopped it."""
    earlier = [each for each in bruteforce.run(plan={"train": 5, "test": 5}) if each["epoch"] < 4]
    later = [each | {"attempt": 1, "began": each["began"] + 1} for each in STOPPED if each["epoch"] == 2]
    last = bruteforce.last([*STOPPED, *later], ends=FEWER, stopped=REASON) | {"phases": STOPPED_LAST["phases"]}
    for lines in [*earlier, *later, last], [*earlier, last]:
        found = verdict(lines)
        assert found.holds and max(each.epoch for each in found.lines) <= 2
        assert found.notes[0] == "20 lines of attempt 0 are superseded: a later attempt resumed before them"
    late = [each | {"attempt": 1, "began": last["began"]} for each in earlier]
    assert not verdict([*late, last]).holds


# Lines against each other


def test_an_end_before_what_was_consumed() -> None:
    """All ranks went on for a step that their lines deny."""
    lines = [each | {"end": 20} if "end" in each else each for each in PLANNED]
    found = sentences(lines)
    said = "expected 10, but N 60 over world size 4 before position 20 makes 5"
    assert f"train epoch 2: rank 2 {said}" in found
    beyond = "consumed, though the epoch ends before position 20"
    told = f"0 lost and 5 duplicated: step 1 (samples 5-9 of its shard) was {beyond}"
    assert f"train epoch 2: rank 2 reports nothing lost or duplicated, but its digest shows {told}" in found
    told = f"0 lost and 20 duplicated: step 1 (positions 20-39 of the order) was {beyond}"
    assert (
        f"train epoch 2: all ranks together report nothing lost or duplicated, but their digest shows {told}" in found
    )


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (slice(8, 10), []),  # two samples are named by the line
        (slice(5, 9), ["step 1 (samples 5-8 of its shard) was never consumed"]),
        (slice(0, 9), ["steps 0-1 (samples 0-8 of its shard) were never consumed"]),
    ],
)
def test_the_last_step_before_an_end_may_be_short(lost: slice, said: list[str]) -> None:
    """Before position 33, rank 0 of 4 has 9 samples, 5 a step: its last step has 4."""

    def consume(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return [each for each in shard if each not in shard[lost]] if (phase, rank) == ("train", 0) else shard

    lines = bruteforce.run(plan={"train": 1}, ends={"train": (1, 33)}, consume=consume)
    start = "train epoch 1: rank 0: "
    found = [each.removeprefix(start) for each in sentences(lines) if each.startswith(start)]
    assert [each for each in found if " lost, " not in each] == said


def test_the_samples_of_a_pod_in_an_epoch_that_ends() -> None:
    said = "train epoch 2: pod demo-master-0 consumed 10 before position 40, but --expect-per-pod is 15"
    assert sentences(PLANNED, expect_per_pod=15)[0] == said


# Values that cannot be


def test_an_end_needs_a_reason_and_so_do_missing_phases() -> None:
    last = {name: value for name, value in STOPPED_LAST.items() if name != "stopped"}
    said = "must say why train ends before its last epoch does"
    assert said in sentences([*STOPPED, last])[0]
    del last["phases"]["test"], last["phases"]["train"]["end"]
    assert '"phases" is ' in sentences([last])[0]


def test_a_garbled_end_takes_no_time() -> None:
    g = digest.base(bruteforce.RUN)
    n, whole = 2**60 + 3, Shard(n=2**60 + 3, rank=0, world=4, order="feistel-1", epoch=2)
    together = line(bruteforce.run(), "all", epoch=2)
    together |= {"n": n, "expected": n, "consumed": n, "digest": str(digest.of_all_ranks(whole, g))}
    said = "train epoch 2: all ranks together report nothing lost or duplicated, but their digest shows"
    assert any(each.startswith(said) for each in sentences([together | {"end": n // 2}]))
    last = bruteforce.last(bruteforce.run(), stopped=REASON)
    folded = str(digest.fold([(1, Digest()), (2, Digest())], bruteforce.RUN))
    last["phases"]["train"] |= {"n": n, "consumed": 2 * n, "digest": folded, "end": [2, n // 2]}
    said = f"train: the last line reports consumed {2 * n}, but epochs 1-2, the last one before position {n // 2}, of"
    assert any(each.startswith(said) for each in sentences([last]))
