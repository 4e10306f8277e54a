"""Random programs, killed and started again: exit code 0 means that each sample is in the weights as the logs say."""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import programs
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from programs import Attempt, Ended, Program

from torchtally import Steps, Tokens
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import Verdict, judge

EXAMPLES = settings.default.max_examples // 10  # each is a program of several processes


@st.composite
def drawn(draw: st.DrawFn, mistakes: bool = False) -> Program:
    n = draw(st.sampled_from([5, 13, 29, 32]))
    accumulate = draw(st.sampled_from([1, 1, 2]))
    plan = draw(
        st.one_of(
            st.integers(1, 4),
            st.builds(Steps, st.integers(1, 12), st.just(accumulate)),
            st.builds(Tokens, st.integers(1, 300), st.just(4)),
        )
    )
    evaluated = ["never", "first", "each epoch", "last", *["twice an epoch"] * isinstance(plan, int)]
    worlds = st.sampled_from([1, 2, 3])
    batches = st.sampled_from([2, 3, 7])
    if isinstance(plan, Steps):  # the plan counts in steps of one size
        worlds, batches = st.just(draw(worlds)), st.just(draw(batches))
    mistake = draw(st.sampled_from(programs.MISTAKES)) if mistakes else None
    starts = st.builds(Attempt, worlds, batches, st.integers(1, 12), st.booleans())
    return Program(
        n=n,
        seed=draw(st.integers(0, 2**40)),
        plan=plan,
        contract=draw(st.sampled_from(["exact", "exact", "padded", "drop_last"])),
        dropped=draw(st.just(frozenset()) | st.frozensets(st.integers(0, n - 1), max_size=n // 2)),
        accumulate=accumulate,
        evaluated=draw(st.sampled_from(evaluated)),
        saved=draw(st.sampled_from(["by hand", "by hand after the epoch", "checkpoints"])),
        saves=draw(st.integers(1, 5)),
        explicit=draw(st.booleans()),
        stops=draw(st.none() | st.none() | st.integers(1, 12)),
        skips=draw(st.just(frozenset()) | st.frozensets(st.integers(1, 12), max_size=4)),
        weighed=draw(st.booleans()) or mistake == "skips a batch",  # commit() would be the loop's word that it has it
        attempts=(*draw(st.lists(starts, max_size=3)), Attempt(draw(worlds), draw(batches))),
        mistake=mistake,
        wrong=draw(st.integers(1, 12)) if mistakes else 1,
    )


def verdict(folder: Path) -> Verdict:
    log = Log()
    for path in sorted(folder.glob("pod-*.log")):
        log.read(path.name, io.StringIO(path.read_text()))
    return judge(log)[-1]


def judged(program: Program, ended: Ended, folder: Path) -> None:
    """Both the weights and the verifier agree with the last line of a run that ended with 0."""
    assert ended.last
    train, found = ended.last["phases"]["train"], verdict(folder)
    assert found.holds, found.problems
    assert found.last and found.last.phases["train"].consumed == train["consumed"]
    assert sum(ended.times) == train["consumed"]
    kept = [times for index, times in enumerate(ended.times) if index not in program.dropped]
    assert not any(ended.times[index] for index in program.dropped)
    if program.contract == "exact" and kept and not program.skips:
        assert max(kept) - min(kept) <= 1
        if isinstance(program.plan, int) and "stopped" not in ended.last:
            assert min(kept) == program.plan


PLAIN = Program(
    n=29,
    seed=5,
    plan=3,
    contract="exact",
    dropped=frozenset(),
    accumulate=1,
    evaluated="each epoch",
    saved="by hand",
    saves=1,
    explicit=False,
    stops=None,
    skips=frozenset(),
    weighed=False,
    attempts=(),
)
LAST = Attempt(2, 3)


@given(drawn())
# Several kills in one epoch, by changing numbers of ranks with batches of other sizes.
@example(replace(PLAIN, attempts=(Attempt(3, 2, 2), Attempt(2, 2, 2), Attempt(1, 3, 2), Attempt(3, 2, 1), LAST)))
@example(replace(PLAIN, contract="padded", weighed=True, attempts=(Attempt(3, 3, 6), LAST)))
@example(replace(PLAIN, contract="drop_last", attempts=(Attempt(3, 3, 6), LAST)))
# A state after the last step of an epoch, which leaves out 2 of 32 samples, or repeats 1.
@example(replace(PLAIN, n=32, contract="drop_last", weighed=True, attempts=(Attempt(3, 7, 2), Attempt(2, 7))))
@example(replace(PLAIN, n=32, contract="padded", weighed=True, attempts=(Attempt(3, 7, 2), Attempt(2, 7))))
@example(replace(PLAIN, plan=Tokens(150, 4), attempts=(Attempt(2, 3, 7), Attempt(3, 3))))
# A state between the two evaluations of an epoch.
@example(replace(PLAIN, evaluated="twice an epoch", saved="by hand after the epoch", attempts=(Attempt(3, 3, 5), LAST)))
@settings(max_examples=EXAMPLES)
def test_a_program_without_a_mistake_is_proved_through_any_kills(program: Program) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        last = programs.run(program, folder)
        note(last.err)
        if program.contract == "padded" and "has repeated" in last.err:
            assert {*last.codes} == {2} and not verdict(folder).last
            return
        assert {*last.codes} == {0}
        judged(program, last, folder)


@pytest.mark.parametrize(("n", "last"), [(32, LAST), (31, Attempt(4, 2)), (31, Attempt(3, 5)), (31, Attempt(2, 7))])
def test_repeated_samples_count_at_any_ranks_that_repeat_as_many(n: int, last: Attempt, tmp_path: Path) -> None:
    """The state is that of the last step of an epoch, in which 3 ranks have repeated 1 of 32 samples, or 2 of 31."""
    program = replace(PLAIN, n=n, contract="padded", weighed=True, attempts=(Attempt(3, 7, 2), last))
    found = programs.run(program, tmp_path)
    if (n, last.world) == (31, 2):
        assert {*found.codes} == {2}
        assert "has repeated 2 samples, as its contract is padded, and 2 ranks cannot count these" in found.err
    else:
        assert {*found.codes} == {0}, found.err
        judged(program, found, tmp_path)


@given(drawn(mistakes=True))
@settings(max_examples=EXAMPLES)
def test_a_program_with_a_mistake_is_not_proved_unless_its_weights_are_right(program: Program) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        last = programs.run(program, folder)
        note(last.err)
        if {*last.codes} == {0}:
            judged(program, last, folder)
        else:
            assert {*last.codes} <= {2, 3}
            found = verdict(folder)
            assert not (found.holds and found.last)
