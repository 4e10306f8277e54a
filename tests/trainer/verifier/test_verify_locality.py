"""The verdict on runs whose order is locality-1: from the lines alone, or with the sizes of the shard files told."""

import json
from pathlib import Path
from typing import Any

import bruteforce
import numpy as np
import pytest
from bruteforce import Line, Local
from hypothesis import given
from hypothesis import strategies as st
from judged import line, read, sentences, verdict

from torchtally.commands import verify
from torchtally.proof import local_order
from torchtally.proof.order import Order, parse
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.verifier.verdict import judge

LOCAL = Local((3, 0, 7, 1, 12, 5, 9), window=2, lanes=2)
contracts = st.sampled_from(["exact", "padded", "drop_last"])
locals_ = st.builds(
    Local,
    st.lists(st.integers(0, 20), min_size=1, max_size=9).filter(any).map(tuple),
    st.integers(1, 4),
    st.integers(1, 5),
)


def order_of(local: Local) -> Order:
    found = parse(str(local), ShardSizes.of(local.sizes))
    assert found
    return found


@given(locals_, st.integers(0, 2**64 - 1), st.integers(1, 99))
def test_the_order_is_that_of_a_queue_of_files_cut_into_lanes(local: Local, seed: int, epoch: int) -> None:
    order = order_of(local)
    assert isinstance(order, local_order.LocalOrder)
    everything = np.arange(sum(local.sizes))
    assert order.samples_at(everything, seed, epoch).tolist() == local.order(seed, epoch)


@given(st.data(), locals_, st.integers(1, 5), contracts, st.booleans())
def test_a_faithful_run_holds(data: st.DataObject, local: Local, world: int, contract: str, ended: bool) -> None:
    n = sum(local.sizes)
    start = data.draw(st.integers(0, n - 1))
    end: Any = {"train": (2, data.draw(st.integers(1, n - 1)))} if ended and n > 1 else None
    lines = bruteforce.run(world=world, contract=contract, seed=3, start=start, ends=end, local=local)
    assert sentences(lines) == []
    last = bruteforce.last(lines, [(1, 0, 1), (1, start, world)][not start :], own=("train",), ends=end)
    stopped = {"stopped": "deadline"} if end else {}
    assert sentences([*lines, last | stopped]) == []
    assert sentences([last | stopped]) == []


def test_a_lost_and_a_duplicated_sample_are_named() -> None:
    order = LOCAL.order(0, 1)
    lost, duplicated = order[2], order[5 * 4 + 2]

    def consume(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        if (phase, epoch, rank) != ("train", 1, 2):
            return shard
        return [*(sample for sample in shard if sample != lost), duplicated]

    assert f"train epoch 1: rank 2: 1 ({lost}) lost, 1 ({duplicated}) duplicated" in sentences(
        bruteforce.run(consume=consume, local=LOCAL)
    )
    lines = bruteforce.run(consume=consume, local=LOCAL)
    for each in lines:  # as a trainer says that only counts
        each.pop("lost_indices", None), each.pop("duplicated_indices", None)
        each |= {"lost": 0, "duplicated": 0}
    found = sentences(lines)
    named = [f"sample {lost} was never consumed", f"sample {duplicated} was consumed twice"]
    assert any("rank 2 reports nothing lost or duplicated" in each and all(n in each for n in named) for each in found)


@given(st.data(), contracts)
def test_any_single_changed_value_breaks_the_proof(data: st.DataObject, contract: str) -> None:
    lines = bruteforce.run(world=3, contract=contract, local=LOCAL)
    lines.append(bruteforce.last(lines))
    at = data.draw(st.sampled_from(range(len(lines))))
    changed = json.loads(json.dumps(lines[at]))
    where = changed["phases"]["train"] if at == len(lines) - 1 else changed
    others = [str(Local(LOCAL.sizes, 3, 2)), str(Local(LOCAL.sizes, 2, 1)), str(Local((37,), 2, 2)), "feistel-1"]
    if "sizes" in where and data.draw(st.booleans()):
        where["sizes"] = data.draw(st.sampled_from([[], [[1, 37]], where["sizes"][::-1], None, [[1, 3]], "3"]))
    elif where["order"] != "sequential":
        where["order"] = data.draw(st.sampled_from(others))
    else:
        where["sizes"] = LOCAL.runs
    assert sentences([*lines[:at], changed, *lines[at + 1 :]])


# Sizes that no line has: there are too many.


def bare(lines: list[Line]) -> list[Line]:
    for each in lines:
        for where in (each, *each.get("phases", {}).values()):
            where.pop("sizes", None)
    return lines


UNKNOWN = (
    "its samples cannot be checked, because no log has the sizes of the shard files whose fingerprint is "
    f"{LOCAL.fingerprint}: pass them with --sizes"
)


def told(lines: list[Line], sizes: Any) -> list[str]:
    log = read(bruteforce.text(lines))
    log.tell(sizes)
    [found] = judge(log)
    return [str(problem) for problem in found.problems]


def test_every_sample_exactly_once_is_proved_without_the_sizes() -> None:
    lines = bare(bruteforce.run(local=LOCAL))
    assert sentences([*lines, *bare([bruteforce.last(lines)])]) == []


@pytest.mark.parametrize("contract", ["padded", "drop_last"])
def test_what_needs_the_sizes_is_not_proved_without_them(contract: str) -> None:
    lines = bruteforce.run(contract=contract, local=LOCAL)
    lines = bare([*lines, bruteforce.last(lines)])
    assert sentences(lines) == [
        *(f"train epoch {epoch}: all ranks together: {UNKNOWN}" for epoch in (1, 2)),
        f"train: the last line: {UNKNOWN}",
    ]
    assert f"train: the last line: {UNKNOWN}" in sentences(lines[-1:])
    assert told(lines, LOCAL.sizes) == []
    assert told(lines, LOCAL.sizes[::-1]) == sentences(lines)


def test_an_epoch_that_ends_early_needs_the_sizes() -> None:
    lines = bare(bruteforce.run(ends={"train": (2, 13)}, local=LOCAL))
    assert sentences(lines) == [f"train epoch 2: all ranks together: {UNKNOWN}"]
    assert told(lines, LOCAL.sizes) == []


def test_one_line_with_the_sizes_is_enough() -> None:
    lines = bruteforce.run(contract="padded", local=LOCAL)
    sizes = line(lines, "all")["sizes"]
    line(bare(lines), "all", epoch=2)["sizes"] = sizes
    assert sentences(lines) == []


def test_without_the_sizes_a_lost_sample_is_found_and_not_named() -> None:
    lines = bare(bruteforce.run(local=LOCAL, plan={"train": 1}, consume=lambda *step: step[3][step[2] == 1 :]))
    lost = line(lines, 1)["lost_indices"][0]
    found = sentences(lines)
    assert f"train epoch 1: rank 1: 1 ({lost}) lost, 0 duplicated" in found
    assert f"train epoch 1: rank 1: {UNKNOWN}" in found


def test_the_sizes_are_told_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, sizes = tmp_path / "demo.log", tmp_path / "sizes.json"
    lines = bruteforce.run(contract="padded", local=LOCAL)
    log.write_text(bruteforce.text(bare([*lines, bruteforce.last(lines)])))
    sizes.write_text(json.dumps(LOCAL.sizes))
    assert verify.main([str(log)]) == 3
    assert verify.main([str(log), "--sizes", str(sizes)]) == 0
    for wrong in ("[1, 2.5]", "{}", "[", "[-1]", "[]", "[[1]]", '["1"]'):
        sizes.write_text(wrong)
        capsys.readouterr()
        assert verify.main([str(log), "--sizes", str(sizes)]) == 2
        assert f"{sizes} must have sizes of shard files as a list in JSON" in capsys.readouterr().err
    assert verify.main([str(log), "--sizes", str(tmp_path / "none")]) == 2


def test_a_line_states_sizes_of_its_own_order_only() -> None:
    lines = bruteforce.run(local=LOCAL)
    line(lines, "all")["sizes"] = [[1, 36], [1, 1]]
    assert (
        '"sizes" is [[1, 36], [1, 1]], allowed is the sizes that the order names, 37 samples together'
        in (sentences(lines)[0])
    )
    lines = bruteforce.run(local=LOCAL)
    line(lines, "all")["n"] = 38
    assert "allowed is the sizes that the order names, 38 samples together" in sentences(lines)[0]
    assert verdict(bruteforce.run(local=LOCAL)).holds


def test_sizes_that_are_told_are_not_those_of_a_garbled_n() -> None:
    lines = bare(bruteforce.run(contract="padded", local=LOCAL, plan={"train": 1}))
    for each in lines:
        each["n"] = 10**9
    assert f"train epoch 1: all ranks together: {UNKNOWN}" in told(lines, LOCAL.sizes)
