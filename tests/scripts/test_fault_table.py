"""The recorder of the tables of faults."""

import dataclasses
from pathlib import Path

from fault_table import Row, last, lost_and_doubled, record

KILLED = Row("kill -9", "OnFailure", 3, 0, 0, same_weights=True, started=1.0, entered=2.94, stepped=4.26)
NOTHING = {"started": None, "entered": None, "stepped": None}


def table(folder: Path) -> list[list[str]]:
    lines = (folder / "local.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_of_each_fault_and_policy_as_it_was_last_seen(tmp_path: Path) -> None:
    record("local", KILLED, tmp_path)
    record("local", dataclasses.replace(KILLED, policy="ExitCode", restarts=0, **NOTHING), tmp_path)
    record("local", dataclasses.replace(KILLED, lost=1, doubled=2, same_weights=False), tmp_path)
    head, _, *rows = table(tmp_path)
    assert head == [
        "fault",
        "restartPolicy",
        "restarts",
        "lost",
        "doubled",
        "same weights",
        "last start, s",
        "entry point, s",
        "next step, s",
    ]
    assert rows == [
        ["kill -9", "OnFailure", "3", "1", "2", "no", "1.0", "2.9", "4.3"],
        ["kill -9", "ExitCode", "0", "0", "0", "yes", "–", "–", "–"],
    ]
    assert len((tmp_path / "local.jsonl").read_text().splitlines()) == 3


def test_the_rows_of_all_ranks_together_are_summed() -> None:
    rows = [{"rank": 0, "n": 90, "lost": 5, "doubled": 5}]
    rows += [{"rank": "all", "n": 90, "lost": 1, "doubled": 0}, {"rank": "all", "n": 90, "lost": 2, "doubled": 3}]
    assert lost_and_doubled({"tallies": rows}) == (3, 3)
    rows += [{"rank": "all", "n": 90, "lost": None, "doubled": None}]
    assert lost_and_doubled({"tallies": rows}) == (93, 93)


def test_the_last_start_is_one_between_the_fault_and_the_next_step() -> None:
    assert last([9.0, 11.0, 14.5, 16.0], fault=10.0, step=5.0) == 4.5
    assert last([9.0, 16.0], fault=10.0, step=5.0) is None
    assert last([11.0], fault=10.0, step=None) is None
