"""The table, its sentences, and JSON."""

import json

import bruteforce
import pytest
from bruteforce import Line
from judged import NO_END, sentences, verdicts

from torchtally.verifier import report


@pytest.mark.parametrize(
    ("contract", "n", "start", "counts", "said"),
    [
        ("exact", 61, 0, "61        61", "✓ every sample exactly once"),
        ("padded", 61, 0, "64        64", "✓ every sample at least once, 3 repeated"),
        ("padded", 60, 0, "60        60", "✓ every sample exactly once"),
        ("padded", 60, 23, "63        63", "✓ every sample at least once, 3 repeated"),
        ("drop_last", 63, 0, "60        60", "✓ no sample twice, 3 left out"),
        ("drop_last", 60, 0, "60        60", "✓ every sample exactly once"),
    ],
)
def test_a_row_says_what_its_contract_gives(contract: str, n: int, start: int, counts: str, said: str) -> None:
    lines = bruteforce.run(n, contract=contract, plan={"train": 1}, start=start)
    assert shown(lines)[5] == f"train      1  all                  4        {counts}     0           0  {said}"


def shown(lines: list[Line], encoding: str = "utf-8", colour: bool = False) -> list[str]:
    return report.as_text(verdicts(lines), encoding=encoding, colour=colour).splitlines()


def test_the_table_is_that_of_the_design() -> None:
    lines = bruteforce.run(60000, plan={"train": 1})
    assert shown([*lines, bruteforce.last(lines)]) == [
        "phase  epoch  pod               rank  expected  consumed  lost  duplicated",
        "train      1  demo-master-0        0     15000     15000     0           0",
        "train      1  demo-worker-0        1     15000     15000     0           0",
        "train      1  demo-worker-1        2     15000     15000     0           0",
        "train      1  demo-worker-2        3     15000     15000     0           0",
        "train      1  all                  4     60000     60000     0           0  ✓ every sample exactly once",
        "",
        f"✓ the proof holds: run 3f9c2a7b10de, 4 ranks, train 1 epoch, model {bruteforce.MODEL}",
    ]


def test_of_many_ranks_those_are_shown_that_are_wrong() -> None:
    def late(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return shard[1:] if rank == 7 else shard

    lines = bruteforce.run(200, world=65, plan={"train": 1}, consume=late)
    rows = [each.split()[2:4] for each in shown(lines)[1:3]]
    assert rows == [["demo-worker-6", "7"], ["all", "65"]]
    assert len(json.loads(report.as_json(verdicts(lines)))["tallies"]) == 66
    assert shown(bruteforce.run(200, world=65, plan={"train": 1}))[1].split()[2] == "all"
    assert shown(bruteforce.run(200, world=64, plan={"train": 1}))[1].split()[2] == "demo-master-0"


def test_without_the_last_line_nothing_is_proved() -> None:
    """Whatever the program has said at its end, such as of weights that it has put back, can be lost with it."""
    lines = bruteforce.run(plan={"train": 1})
    assert shown(lines)[-1] == f"✗ {NO_END}"
    assert json.loads(report.as_json(verdicts(lines)))["holds"] is False
    assert verdicts(lines)[0].outcome.status == 3
    assert shown([*lines, bruteforce.last(lines)])[-1].startswith("✓ the proof holds: run 3f9c2a7b10de, 4 ranks")


def test_the_last_line_alone() -> None:
    worlds = [(1, 0, 4), (2, 17, 1)]
    lines = bruteforce.run(worlds=worlds)
    text = shown([bruteforce.last(lines, worlds, discarded=2400)])
    assert text[:2] == [
        "note: no tally line of phase train at all, epochs 1-2 planned; the run's last line is proof enough",
        "note: no tally line of phase test at all, epochs 1-2 planned; the run's last line is proof enough",
    ]
    assert text[2:] == [
        f"✓ the proof holds: run 3f9c2a7b10de, 1 rank, train 2 epochs, test 2 epochs, model {bruteforce.MODEL}; "
        "2400 samples consumed by steps that no checkpoint kept were discarded and do not count"
    ]
    one = shown([*lines, bruteforce.last(lines, worlds, discarded=1, model=None)])[-1]
    assert one.endswith(
        "test 2 epochs; 1 sample consumed by steps that no checkpoint kept was discarded and does not count"
    )


def test_long_values_widen_their_column() -> None:
    lines = bruteforce.run(world=1, plan={"a-long-phase": 1}, pod="a-pod-with-a-long-name-0", contract="exact")
    header, row, *_ = shown(lines)
    assert row.startswith("a-long-phase      1  a-pod-with-a-long-name-0     0  ")
    assert header.startswith("phase         epoch  pod                       rank  ")


def test_rows_follow_the_run() -> None:
    rows = [each.split()[:2] for each in shown(bruteforce.run(world=1))[1:9:2]]
    assert rows == [["train", "1"], ["test", "1"], ["train", "2"], ["test", "2"]]


def test_a_bad_block_is_marked_and_told_below() -> None:
    lines = bruteforce.run(plan={"train": 2}, consume=lambda phase, epoch, rank, shard: shard[epoch - 1 :])
    text = shown(lines)
    assert text[5].endswith("  ✓ every sample exactly once")
    assert "  ✗ all ranks together: 4 (" in text[10] and text[10].endswith(") lost, 0 duplicated, and 4 more below")
    assert [each[:20] for each in text[12:-1]] == ["✗ train epoch 2: all", *["✗ train epoch 2: ran"] * 4]
    assert text[-1] == "✗ disproved: lines contradict the contract or each other"


def test_a_missing_rank_marks_every_block() -> None:
    text = shown([each for each in bruteforce.run() if each["rank"] != 3])
    assert [each.split("  ✗ ")[1] for each in text if "all    " in each] == ["no tally line of rank 3 at all"] * 4


def test_without_the_characters_and_with_colour() -> None:
    lines = bruteforce.run(plan={"train": 1})
    plain = "\n".join(shown(lines, encoding="ascii"))
    assert plain.isascii() and "ok: every sample exactly once" in plain
    said = "incomplete: lines are missing or cannot be checked, so nothing is proved"
    assert f"not ok: {said}" in shown(lines[1:], encoding="latin-1")
    assert "\033[32m✓\033[0m every sample exactly once" in shown(lines, colour=True)[5]
    assert f"\033[31m✗\033[0m {said}" in shown(lines[1:], colour=True)


def test_json() -> None:
    lines = bruteforce.run(plan={"train": 1}, start=23, batch=8, consume=lambda phase, epoch, rank, shard: shard[rank:])
    told = json.loads(report.as_json(verdicts(lines)))
    assert (told["outcome"], told["holds"]) == ("disproved", False)
    assert (told["run"], told["attempt"]) == ("3f9c2a7b10de", 0)
    assert told["problems"] == sentences(lines) and told["notes"] == []
    assert len(told["tallies"]) == 5
    for given, read in zip(lines, told["tallies"], strict=True):
        optional = {name for name, value in read.items() if value is None} - given.keys()
        assert {"v": 2} | {name: read[name] for name in read.keys() - optional} == {
            "lost_indices": [],
            "duplicated_indices": [],
            **given,
        } | ({"ok": False} if given["rank"] == "all" else {})
    assert json.loads(report.as_json(verdicts(bruteforce.run())))["tallies"][-1]["ok"] is True
    nothing = json.loads(report.as_json(verdicts([])))
    assert [nothing[name] for name in ("run", "last_line", "model", "discarded")] == [None, False, None, None]
    assert (nothing["outcome"], nothing["holds"]) == ("incomplete", False)


def test_json_has_what_the_last_line_says() -> None:
    lines = bruteforce.run()
    names = ("holds", "last_line", "model", "discarded", "stopped")
    for last, said in (
        (bruteforce.last(lines, discarded=7), [True, True, bruteforce.MODEL, 7, None]),
        (bruteforce.last(lines, model=None), [True, True, None, 0, None]),
        (bruteforce.last(lines, ends={"test": (2, 9)}, stopped="patience"), [True, bruteforce.MODEL, 0, "patience"]),
    ):
        for some in [last], [*lines, last]:
            told = json.loads(report.as_json(verdicts(some)))
            assert [told[name] for name in names][-len(said) :] == said
            assert len(told["tallies"]) == len(some) - 1


def test_more_than_can_be_counted() -> None:
    lines = bruteforce.run(plan={"train": 1})
    lines[0] |= {"lost": None, "duplicated": None}
    assert shown(lines)[1] == "train      1  demo-master-0        0        15        15  many        many"
    told = json.loads(report.as_json(verdicts(lines)))["tallies"]
    assert (told[0]["lost"], told[0]["duplicated"]) == (None, None)
