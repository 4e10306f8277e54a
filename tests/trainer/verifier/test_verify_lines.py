"""Lines of many ranks: held as numbers, and judged together as each would be by itself."""

import json
import random
import tracemalloc
from typing import Any

import bruteforce
import pytest
from bruteforce import Line
from hypothesis import given
from hypothesis import strategies as st
from judged import read, verdict
from msgspec.structs import replace

from torchtally.proof import digest
from torchtally.proof.line import TallyLine
from torchtally.proof.shards import Shard
from torchtally.verifier import expected
from torchtally.verifier.line_groups import Lines

RANKS = 5_000


def plain(rank: int) -> dict[str, Any]:
    draw = random.Random(rank)
    words = digest.Digest(tuple(draw.randrange(digest.P) for _ in range(digest.WORDS)))
    own = {"pod": f"demo-worker-{rank}", "rank": rank, "expected": 300, "consumed": 301, "digest": str(words)}
    return own | {"lost": 0, "duplicated": 0}


def filled(**values: Any) -> TallyLine:
    """A line with these values, and others that ranks have in common."""
    known = json.loads(bruteforce.text(bruteforce.run(world=1, plan={"train": 1})[:1]).partition(" ")[2])
    return replace(TallyLine.parse(known), **values)


def test_lines_take_little_memory_and_come_back_as_they_were() -> None:
    owns = [plain(rank) for rank in range(RANKS)]
    owns[3] |= {"dropped": 1, "dropped_digest": str(digest.Digest((1,) * digest.WORDS))}
    owns[4] |= {"lost": None, "duplicated": None}
    owns[5] |= {"lost": 1, "lost_indices": (2,)}
    all_lines = [filled(world=RANKS, **own) for own in owns]
    tracemalloc.start()
    lines = Lines(all_lines[-1])
    for line in reversed(all_lines[:-1]):
        lines.add(line)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 220 * RANKS
    assert len(lines) == RANKS
    assert [lines.line(rank) for rank in range(RANKS)] == all_lines
    assert lines.line(RANKS) is None and lines.line("all") is None


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    n = draw(st.one_of(st.integers(1, 40), st.integers(1, 2**60)))
    start = draw(st.integers(0, n - 1))
    end = draw(st.one_of(st.none(), st.integers(max(1, start), max(1, n - 1))))
    contract = draw(st.sampled_from(["exact", "padded", "drop_last"]))
    return Shard(n=n, rank=0, world=draw(st.integers(1, 30)), contract=contract, start=start, end=end)


@given(shards(), st.data())
def test_only_lines_that_are_not_right_are_doubtful(shard: Shard, data: st.DataObject) -> None:
    common = {"n": shard.n, "world": shard.world, "contract": shard.contract, "start": shard.start, "end": shard.end}
    lines, right = [], set()
    for rank in data.draw(st.permutations(range(shard.world))):
        own = Shard(**{**vars(shard), "rank": rank})
        words = sum(
            (digest.of_progression(part, digest.base(bruteforce.RUN)) for part in own.progressions), digest.Digest()
        )
        values = plain(rank) | {"expected": own.size, "consumed": own.size, "digest": str(words)}
        match data.draw(st.sampled_from(["right", "right", "expected", "consumed", "digest", "lost"])):
            case "right":
                right.add(rank)
            case "digest":
                at = data.draw(st.integers(0, digest.OF_POSITIONS - 1))
                changed = [*words.words]
                changed[at] = (changed[at] + 1) % digest.P
                values["digest"] = str(digest.Digest(tuple(changed)))
            case name:
                values[name] += 1
        lines.append(filled(**common, **values))
    groups = Lines(lines[0])
    for each in lines[1:]:
        groups.add(each)
    assert [line.rank for line in expected.doubtful([groups])] == sorted({*range(shard.world)} - right)
    assert all(
        expected.is_right(line) == (line.rank in right) for rank in range(shard.world) if (line := groups.line(rank))
    )


def test_lines_of_two_camps_and_those_that_are_not_plain_stay_in_the_order_of_ranks() -> None:
    lines = bruteforce.run(world=4, plan={"train": 1})
    lines[1]["batch"] = 24
    lines[2]["lost_indices"] = []
    for order in (lines, lines[::-1]):
        found = verdict(order)
        assert [line.rank for line in found.lines] == [0, 1, 2, 3, "all"]
        assert str(found.problems[0]) == (
            "train epoch 1: the lines disagree on batch: 20 (ranks 0, 2-3 and all ranks together), 24 (rank 1)"
        )


@pytest.mark.parametrize("field", ["expected", "consumed", "digest", "pod"])
def test_a_line_among_many_that_is_printed_twice_and_differs_is_found(field: str) -> None:
    lines: list[Line] = bruteforce.run(n=600, world=80, plan={"train": 1})
    twin = dict(lines[70])
    twin[field] = lines[71][field] if isinstance(twin[field], str) else twin[field] + 1
    log = read(bruteforce.text([*lines, twin, lines[3]]))
    [complaint] = log.complaints
    assert complaint.text.startswith("demo.log:82: train epoch 1 of rank 70 is printed twice and differs: " + field)
