"""Several runs in one log: each is judged, and all of them must be proved."""

import json
from itertools import chain
from pathlib import Path

import bruteforce
import pytest
from bruteforce import BEGAN, Line
from hypothesis import given
from hypothesis import strategies as st
from judged import read, verdicts

from torchtally import events
from torchtally.commands import verify
from torchtally.verifier import report
from torchtally.verifier.verdict import judge

RESUMED = events.Resumed(task="t", world=2, checkpoint=None, epoch=1, position=4, discarded=0)
SMALL = {"train": 1, "test": 1}


def fold(number: int, began: int | None = None, **values: object) -> list[Line]:
    """One of several runs in a process, with its last line."""
    name = "3f9c2a7b10de" + f".{number}" * (number > 1)
    lines = bruteforce.run(20, run=name, began=BEGAN + 1000 * number if began is None else began, plan=SMALL, **values)
    return [*lines, bruteforce.last(lines)]


FOLDS = [fold(1), fold(2), fold(3)]
ALL = [*chain(*FOLDS)]


def shown(lines: list[Line]) -> list[str]:
    return report.as_text(verdicts(lines), encoding="utf-8", colour=False).splitlines()


def test_each_run_has_its_table_and_verdict() -> None:
    text = shown(ALL)
    assert [each for each in text if each.startswith("run ")] == [f"run 3f9c2a7b10de{end}" for end in ("", ".2", ".3")]
    assert sum(each.startswith("phase  epoch") for each in text) == 3
    assert [each.partition(",")[0] for each in text if each.startswith("✓")] == [
        "✓ the proof holds: run 3f9c2a7b10de",
        "✓ the proof holds: run 3f9c2a7b10de.2",
        "✓ the proof holds: run 3f9c2a7b10de.3",
        "✓ 3 of 3 runs are proved: 3f9c2a7b10de",
    ]
    assert text[-1] == "✓ 3 of 3 runs are proved: 3f9c2a7b10de, 3f9c2a7b10de.2, 3f9c2a7b10de.3"


def test_runs_are_in_the_order_of_their_begin_and_then_of_appearance() -> None:
    lines = [*FOLDS[2], *FOLDS[0], *FOLDS[1]]
    assert [each.run for each in verdicts(lines)] == ["3f9c2a7b10de", "3f9c2a7b10de.2", "3f9c2a7b10de.3"]
    unknown = [*fold(2, 0), *fold(3, 0), *fold(1, 0)]
    assert [each.run for each in verdicts(unknown)] == ["3f9c2a7b10de.2", "3f9c2a7b10de.3", "3f9c2a7b10de"]


def test_a_run_that_is_not_complete_is_not_proved_and_its_end_is_told() -> None:
    began_late = bruteforce.run(run="later", began=BEGAN + 9000, plan={"train": 9})[:12]
    text = shown([*FOLDS[0], *began_late])
    assert "✗ train: no tally line of epochs 4-9, 9 planned" in text
    end = "later (its lines end in train epoch 3, 9 planned)"
    assert text[-1] == f"✗ incomplete: 1 of 2 runs is proved: 3f9c2a7b10de; not proved: {end}"
    text = shown([*FOLDS[0], *FOLDS[1][:-1], *began_late])
    without = "3f9c2a7b10de.2 (its last line is missing)"
    assert text[-1].startswith(f"✗ incomplete: 1 of 3 runs is proved: 3f9c2a7b10de; not proved: {without}, later (")


def test_a_run_that_is_complete_and_wrong_has_no_end_to_tell() -> None:
    wrong = bruteforce.run(run="wrong", plan=SMALL, consume=lambda phase, epoch, rank, shard: shard[rank == 1 :])
    text = shown([*wrong, *FOLDS[0]])
    assert text[-1] == "✗ disproved: 1 of 2 runs is proved: 3f9c2a7b10de; not proved: wrong"
    assert shown([*wrong, bruteforce.last(wrong), *FOLDS[0]])[-1] == text[-1]
    assert shown([*wrong, *bruteforce.run(run="half")[:3]])[-1] == (
        "✗ disproved: 0 of 2 runs are proved; not proved: wrong, half (its lines end in train epoch 1, 2 planned)"
    )


def test_a_run_of_which_no_line_is_whole_is_not_proved() -> None:
    text = bruteforce.text(FOLDS[0]) + bruteforce.text(FOLDS[1])[:300] + "\n"
    found = judge(read(text))
    assert [(each.run, each.holds, each.attempt) for each in found] == [
        ("3f9c2a7b10de", True, 0),
        ("3f9c2a7b10de.2", False, None),
    ]
    said = report.as_text(found, encoding="utf-8", colour=False).splitlines()[-1]
    assert (
        said == "✗ incomplete: 1 of 2 runs is proved: 3f9c2a7b10de; not proved: 3f9c2a7b10de.2 (it has no whole line)"
    )
    assert [each.holds for each in judge(read(text), run="3f9c2a7b10de")] == [True]


@pytest.mark.parametrize("event", [events.Begun(task="t", world=2), RESUMED])
def test_a_run_that_has_begun_and_ended_in_its_first_epoch_is_not_proved(event: events.Event) -> None:
    source = events.Source(pod="demo-master-0", rank=0, run="died", attempt=0)
    text = bruteforce.text(FOLDS[0]) + "[rank0] " + events.line(events.Record(BEGAN / 1000 + 9, source, event)) + "\n"
    found = judge(read(text))
    assert [(each.run, each.holds) for each in found] == [("3f9c2a7b10de", True), ("died", False)]
    said = report.as_text(found, encoding="utf-8", colour=False)
    assert "✗ no tally line of run died, which began at " in said
    assert said.endswith("1 of 2 runs is proved: 3f9c2a7b10de; not proved: died (it has no whole line)")
    assert [each.holds for each in judge(read(text), run="died")] == [False]
    assert [each.holds for each in judge(read(text), run="3f9c2a7b10de")] == [True]


def test_a_line_of_which_the_run_is_not_known_counts_against_each() -> None:
    text = bruteforce.text(ALL) + 'TORCHTALLY {"v":2,\n'
    assert not any(each.holds for each in judge(read(text)))


def test_json_of_several_runs() -> None:
    told = json.loads(report.as_json(verdicts(ALL)))
    assert told.keys() == {"outcome", "holds", "runs"}
    assert (told["outcome"], told["holds"]) == ("proved", True) and all(each["holds"] is True for each in told["runs"])
    assert told["runs"] == [json.loads(report.as_json(verdicts(lines))) for lines in FOLDS]
    told = json.loads(report.as_json(verdicts(FOLDS[0] + FOLDS[1][:3])))
    assert (told["holds"], [each["holds"] for each in told["runs"]]) == (False, [True, False])
    assert (told["outcome"], [each["outcome"] for each in told["runs"]]) == ("incomplete", ["proved", "incomplete"])


def test_the_lines_of_a_run_are_not_proved_by_the_last_line_of_another() -> None:
    other = FOLDS[1][-1] | {"run": "3f9c2a7b10de"}
    found = verdicts([*FOLDS[0][:-1], other])
    assert [each.holds for each in found] == [False]
    other = FOLDS[0][-1] | {"run": "3f9c2a7b10de.2"}
    assert [each.holds for each in verdicts([*FOLDS[0], other])] == [True, False]
    assert [each.holds for each in verdicts([*FOLDS[0][:3], FOLDS[1][-1]])] == [False, True]


@given(st.data())
def test_mixed_logs_are_judged_as_each_alone(data: st.DataObject) -> None:
    left_out = data.draw(st.sets(st.integers(0, len(ALL) - 1), max_size=9))
    kept = [[each for each in lines if ALL.index(each) not in left_out] for lines in FOLDS]
    mixed = data.draw(st.permutations([*chain(*kept)]))
    found = {each.run: each for each in verdicts(mixed)}
    for lines in kept:
        [alone] = verdicts(lines)
        together = found[alone.run]
        assert (together.holds, together.problems, together.notes) == (alone.holds, alone.problems, alone.notes)
        assert together.holds == (lines[-1]["phase"] == "all" or len(lines) == 10)


def test_the_exit_status_is_that_of_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, lines in enumerate(FOLDS):
        (folder / f"{number}.log").write_text(bruteforce.text(lines))
    assert verify.main([str(folder)]) == 0
    assert capsys.readouterr().out.endswith(".3\n")
    (folder / "2.log").write_text(bruteforce.text(FOLDS[2][:4]))
    assert verify.main([str(folder)]) == 3
    assert verify.main([str(folder), "--json"]) == 3
    assert verify.main([str(folder), "--run", "3f9c2a7b10de.2"]) == 0
