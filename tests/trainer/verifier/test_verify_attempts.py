"""Attempts of one run: their number and begin tell them apart, and only those that the weights come from count."""

from typing import Any

import bruteforce
from bruteforce import BEGAN, Line
from hypothesis import given
from hypothesis import strategies as st
from judged import line, read, sentences, verdict

from torchtally.verifier.verdict import judge

LATER = BEGAN + 60_000


def again(attempt: int, began: int, **values: Any) -> list[Line]:
    """The lines of a whole run, all of one attempt."""
    return bruteforce.run(attempt=attempt, began=began, **values)


def lazy(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    return shard[(phase, epoch, rank) == ("train", 1, 1) :]


def killed(attempt: int = 0, began: int = BEGAN, **values: Any) -> list[Line]:
    """The lines of an attempt that was killed after rank 1 had printed that of train epoch 2."""
    return again(attempt, began, **values)[:12]


# From scratch


@given(st.data(), st.integers(0, 1), st.integers(1, 5))
def test_an_attempt_that_began_anew_is_proved_by_its_own_lines_alone(
    data: st.DataObject, attempt: int, world: int
) -> None:
    earlier = again(0, BEGAN, consume=data.draw(st.sampled_from([bruteforce.faithful, lazy])))
    earlier = earlier[: data.draw(st.integers(1, len(earlier)))]
    anew, faulty = again(attempt, LATER, world=world), again(attempt, LATER, world=4, consume=lazy)
    for lines in [*earlier, *anew], [*anew, *earlier], [*earlier, *anew, bruteforce.last(anew)]:
        found = verdict(lines)
        assert found.holds and found.attempt == attempt
        assert {each.began for each in found.lines} == {LATER}
    lost = data.draw(st.sampled_from(anew))
    assert not verdict([*earlier, *(each for each in anew if each is not lost)]).holds
    assert not verdict([*earlier, *faulty]).holds


def test_a_line_that_counts_and_is_printed_twice_in_two_ways_is_no_evidence() -> None:
    lines = [each for each in again(0, BEGAN) if each["epoch"] == 1]
    rest = [each for each in again(1, LATER) if each["epoch"] == 2]
    twin = line(again(0, BEGAN, consume=lazy), 1)
    assert verdict([*lines, *rest]).holds
    for twins in ([*lines, twin, *rest], [*lines, twin, *rest, bruteforce.last([*lines, *rest])]):
        assert any("train epoch 1 of rank 1 is printed twice and differs" in each for each in sentences(twins))
    assert verdict([*lines, twin, *again(1, LATER)]).holds  # done again


def test_a_number_that_is_used_again_belongs_to_the_later_attempt() -> None:
    """Attempt 1 did epoch 1 again and kept no checkpoint: the next one went on with that of attempt 0."""
    first, second = (
        [each for each in again(*attempt) if each["epoch"] == epoch]
        for attempt, epoch in [((0, BEGAN), 1), ((1, LATER + 1), 2)]
    )
    given_up = [each for each in again(1, LATER) if each["epoch"] == 1]
    assert verdict([*first, *given_up, *second]).holds
    faulty = [each for each in again(0, BEGAN, consume=lazy) if each["epoch"] == 1]
    assert not verdict([*faulty, *given_up, *second]).holds  # its weights have seen what was faulty
    assert not verdict([*given_up, *second]).holds


@given(st.data())
def test_any_other_begin_breaks_the_proof_by_lines(data: st.DataObject) -> None:
    lines = bruteforce.run(20, data.draw(st.integers(1, 4)), began=BEGAN)
    other = data.draw(st.sampled_from([0, 1, BEGAN - 1, BEGAN + 1, LATER]))
    data.draw(st.sampled_from(lines))["began"] = other
    assert not verdict(lines).holds


# The last line


def test_what_came_after_the_last_line_is_not_proved_by_it() -> None:
    done = again(0, BEGAN)
    last = bruteforce.last(done)
    found = sentences([*done, last, *killed(1, LATER)])
    assert found == ["attempt 1 has lines, and came after the last line, which is of attempt 0"]
    found = sentences([*done, last, *killed(0, LATER)])
    late, of_last = "attempt 0 of 2026-01-02 03:05:05.000 UTC", "attempt 0 of 2026-01-02 03:04:05.000 UTC"
    assert found == [f"{late} has lines, and came after the last line, which is of {of_last}"]
    assert not verdict([last, *killed(1, 0)]).holds
    assert not verdict([last | {"began": 0}, *killed(1, LATER)]).holds


def test_of_a_last_line_that_is_printed_again_the_one_that_the_lines_have_counts() -> None:
    done, anew = again(0, BEGAN), again(1, LATER)
    lasts = [bruteforce.last(done), bruteforce.last(anew)]
    for both in lasts, lasts[::-1]:
        found = verdict([*done, *anew, *both])
        assert found.holds and found.attempt == 1
        assert verdict([*done, *both]).attempt == 0


def test_a_run_that_went_back_to_an_older_checkpoint() -> None:
    """Attempts 1 and 2 were given up; the next one goes on with the checkpoint of attempt 0, and has number 1 again."""
    first = [each for each in again(0, BEGAN) if each["epoch"] == 1]
    given_up = [each for each in again(2, BEGAN + 2, consume=lazy) if each["phase"] == "train"]
    final = [each for each in again(1, LATER) if each["epoch"] == 2]
    found = verdict([*first, *given_up, *final, bruteforce.last(final + first)])
    assert not found.holds  # its last line is of the lines in the order of the run
    last = bruteforce.last(first + final)
    found = verdict([*first, *given_up, *final, last])
    assert found.holds and found.attempt == 1
    assert found.notes == ["10 lines of attempt 2 are superseded: a later attempt resumed before them"]
    # Without a last line the given up attempt could be the last, and hide what the other did.
    said = "attempt 1 began after attempt 2, and without the run's last line it is not known which came last"
    assert said in sentences([*first, *final, *again(2, BEGAN + 2)])


def test_lines_of_an_earlier_release_have_no_begin() -> None:
    def without(lines: list[Line]) -> list[Line]:
        return [{name: value for name, value in each.items() if name != "began"} for each in lines]

    old = without(bruteforce.run())
    assert verdict(old).holds
    assert verdict(without([*bruteforce.run(), bruteforce.last(bruteforce.run())])).notes == []
    epochs = [[each for each in lines if each["epoch"] == e] for e, lines in ((1, old), (2, again(1, LATER)))]
    assert verdict([*epochs[0], *epochs[1]]).holds


# Cut lines


def test_a_cut_line_of_an_attempt_whose_number_was_used_again_is_no_matter() -> None:
    text = bruteforce.text(killed()[:1])
    lines = bruteforce.text(again(0, LATER))
    assert judged_text(text[:200] + "\n" + lines) == []
    began = text.index('"began"')
    for cut in (began, began + 12):  # when it began is not known, so it may be of this one
        assert len(judged_text(text[:cut] + "\n" + lines)) == 1
    assert len(judged_text(bruteforce.text(again(0, LATER)[:1])[:200] + "\n" + lines)) == 1


def judged_text(text: str) -> list[str]:

    [found] = judge(read(text))
    return [str(problem) for problem in found.problems]


# Batches


def test_the_epochs_of_a_phase_may_differ_in_batch() -> None:
    lines = [each | {"batch": 20 * each["epoch"]} for each in bruteforce.run()]
    assert sentences(lines) == [] == sentences([*lines, bruteforce.last(lines)])
