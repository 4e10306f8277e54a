"""The format of a line: what is filled in is what is read, and the reference describes every field."""

import json
import re
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Struct
from msgspec.structs import replace

from torchtally.proof import line, rules, run_summary
from torchtally.proof.digest import Digest
from torchtally.proof.line import PREFIX, TallyLine
from torchtally.proof.run_summary import PhaseSummary, RunSummary

REFERENCE = Path(__file__).parents[3] / "docs/reference/line.md"
LINE = TallyLine(
    run="3f9c2a7b10de",
    attempt=1,
    pod="demo-worker-0",
    task="fashion-mnist",
    phase="train",
    epoch=2,
    plan={"train": 2, "test": 2},
    rank=1,
    world=4,
    n=60,
    start=0,
    batch=16,
    seed=0,
    contract="exact",
    order="feistel-1",
    data="sha256:0",
    expected=15,
    consumed=15,
    digest=str(Digest((15, *range(1, 20)))),
    lost=0,
    duplicated=0,
)
SUMMARY = RunSummary(
    run="3f9c2a7b10de",
    attempt=1,
    pod="demo-master-0",
    task="fashion-mnist",
    plan={"train": 2, "test": 0},
    seed=0,
    worlds=((1, 0, 4), (2, 31, 3)),
    phases={
        "train": PhaseSummary(
            n=60, contract="exact", order="feistel-1", data="sha256:0", consumed=120, digest=str(Digest())
        )
    },
    model=None,
    discarded=0,
)


@pytest.mark.parametrize(
    "filled",
    [
        LINE,
        replace(LINE, rank="all", lost=3, duplicated=1, lost_indices=(1, 2, 59), duplicated_indices=(-1,)),
        replace(LINE, lost=None, duplicated=None),
        replace(LINE, began=1767323045000),
        replace(LINE, end=59),
        replace(LINE, start=31, end=31),
        replace(SUMMARY, stopped="patience", phases={"train": replace(SUMMARY.phases["train"], end=(2, 59))}),
        replace(SUMMARY, stopped="the plan is in steps"),
        SUMMARY,
        replace(
            SUMMARY,
            began=1767323045000,
            phases={"train": replace(SUMMARY.phases["train"], worlds=((1, 0, 2), (1, 59, 7), (2, 0, 1)))},
        ),
    ],
)
def test_a_line_is_read_as_it_was_filled_in(filled: TallyLine | RunSummary) -> None:
    printed = line.to_text(filled.printed())
    assert printed.startswith(PREFIX)
    values = json.loads(printed.removeprefix(PREFIX))
    line.check_version(values)
    assert type(filled).parse(values) == filled
    assert run_summary.is_summary(values) == isinstance(filled, RunSummary)


def test_what_is_optional_is_in_a_line_only_where_it_is_known() -> None:
    assert not LINE.printed().keys() & {"end", "lost_indices", "duplicated_indices"}
    wrong = replace(LINE, lost=1, lost_indices=(3,)).printed()
    assert (wrong["lost_indices"], wrong["duplicated_indices"]) == ([3], [])
    assert not SUMMARY.printed()["phases"]["train"].keys() & {"worlds", "end"}
    assert "stopped" not in SUMMARY.printed()


def test_a_line_of_an_earlier_release_has_no_begin() -> None:
    for filled in (LINE, SUMMARY):
        values = filled.printed()
        del values["began"]
        assert type(filled).parse(values) == filled
        assert filled.attempt_began == (1, 0)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (31, 30), (0, 60), (0, None)])
def test_an_epoch_ends_between_its_start_and_the_end_of_its_order(start: int, end: object) -> None:
    with pytest.raises(
        ValueError, match=f'"end" is {json.dumps(end)}, allowed is an integer from {max(1, start)} to 59'
    ):
        TallyLine.parse(LINE.printed() | {"start": start, "end": end})


def test_a_field_with_a_default_may_be_missing_and_is_checked_where_it_is_there() -> None:
    class Format(Struct):
        old: Annotated[int, rules.integer(0, 9)]
        added: rules.Maybe[rules.Text] = None

    def read(values: dict[str, object]) -> Format:
        return rules.made(Format, values, rules.misfits)

    assert read({"old": 1}) == Format(1)
    assert read({"old": 1, "added": "cuda", "of a later release": 3}) == Format(1, "cuda")
    with pytest.raises(ValueError, match='"added" is 7, allowed is printable text'):
        read({"old": 1, "added": 7})
    with pytest.raises(ValueError, match='"old" is missing'):
        read({"added": "cuda"})


def test_the_reference_describes_every_field() -> None:
    described = REFERENCE.read_text()
    of_line, of_summary = (
        {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        for table in described.split("## Last line of a run")
    )
    assert of_line == {"v", *line.NAMES}
    assert of_summary == {*RunSummary.__struct_fields__} - {*line.NAMES}
    assert f"version of the format: {line.VERSION}" in described
