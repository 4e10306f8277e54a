"""What the table says of scaling, and that what is measured for it is the thing itself."""

from pathlib import Path

import pytest
import torch.distributed as dist
from torch import Tensor

from bench import model, scaling_table, table
from bench.measure import many, scaling
from bench.model import HELD_OUT, Cost, Network
from bench.results import Results
from bench.sample import Sample

COST = Cost(step=1e-3, row=2e-4, network=Network(alpha=1e-3, beta=1e-9, messages=model.tree))


def results(wrong: float = 1.0) -> Results:
    """Of two cores, on which a step costs `COST`, and the held-out one's speed is `wrong` times as large as that."""
    machine: dict[str, str | int | float] = {"processor": "A", "cores": 2, "memory_gb": 8}
    found = Results(began="", seconds=0, commit="", machine=machine, versions={})

    def add(measure: str, value: float, **case: str | int) -> None:
        found.add(Sample(measure=measure, case=case, unit="it", better="higher", value=value), 2, 0.5)

    for world in model.WORLDS:
        times = wrong if world == HELD_OUT else 1
        add("scaling", times * 32 * world / COST.seconds(world, 32, 2), kind="weak", world=world)
        add("scaling", times * 256 / COST.seconds(world, 256 / world, 2), kind="strong", world=world)
        if world > 1:
            for size in (4, model.GRADIENT):
                add("all-reduce", 1e3 * COST.network.seconds(world, 2, size) / times, world=world, bytes=size)
    for n, seconds in ((10, 1.0), (100, 4.0), (1000, 40.0)):
        add("many", seconds, what="jobs simulated", n=n)
    return found


def cells(text: list[str], begin: str) -> list[str]:
    (row,) = (line for line in text if line.startswith(f"| {begin} |"))
    return row.strip("| ").split(" | ")


def test_efficiency_is_of_the_ranks_and_of_the_cores_that_they_have() -> None:
    text = scaling_table.lines(results())
    one, four = 32 / COST.seconds(1, 32, 2), 128 / COST.seconds(4, 32, 2)
    _, weak, of_ranks, of_cores, *_ = cells(text, "4")
    assert weak == f"{four:,.0f}"
    assert of_ranks == f"{100 * four / one / 4:.1f}%"
    assert of_cores == f"{100 * four / one / 2:.1f}%"
    assert cells(text, "1")[2:4] == ["100%", "100%"]


def test_a_world_that_was_not_measured_is_left_open() -> None:
    found = results()
    found.series = [each for each in found.series if each.case != {"kind": "weak", "world": 3}]
    assert cells(scaling_table.lines(found), "3")[1:4] == ["–", "–", "–"]


def test_the_model_says_what_it_has_found_and_how_far_off_it_is_where_it_was_not_fitted() -> None:
    text = "\n".join(scaling_table.lines(results()))
    assert "(1,000 µs + 200 µs × r) × max(1, w / 2) + 1,000 µs × log2 w + 1.00 ns × bytes" in text
    assert text.count("ms measured (+0%)") + text.count("ms measured (-0%)") >= 3
    assert "ms measured (+100%)" in "\n".join(scaling_table.lines(results(wrong=2.0)))


def test_many_ranks_are_drawn_on_to_by_either_form_and_network() -> None:
    text = scaling_table.lines(results())
    rows = [line for line in text if line.startswith(("| loopback's", "| 50 µs, 10 Gbit/s"))]
    assert len(rows) == 4
    stated = Cost(COST.step, COST.row, Network(50e-6, 0.8e-9, model.ring))
    (row,) = (row.split(" | ") for row in rows if "50 µs" in row and "ring" in row)
    assert row[4] == f"{100 * stated.efficiency(1024, 32):.2f}%"


def test_growth_is_the_exponent_between_the_two_largest() -> None:
    assert cells(scaling_table.lines(results()), "jobs simulated") == ["jobs simulated", "1.00", "4.00", "40.0", "1.00"]


def test_nothing_is_said_of_what_was_not_measured_and_nothing_twice() -> None:
    found = results()
    assert all(f"| {measure} |" not in table.text(found) for measure in scaling_table.MEASURES)
    found.series = [each for each in found.series if each.measure == "many"]
    assert "log2" not in table.text(found)
    found.series = []
    assert scaling_table.lines(found) == []


def test_all_reduces_of_both_sizes_are_made_by_so_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = []

    def counted(numbers: Tensor) -> float:
        numbers.fill_(1)
        dist.all_reduce(numbers)
        worlds.append(numbers.max().item())
        return 1.0

    monkeypatch.setattr(scaling, "_mean_seconds", counted)
    assert scaling.all_reduces(3) == {4: 1.0, model.GRADIENT: 1.0}
    assert worlds == [3, 3]


def test_a_job_is_simulated_to_its_end_with_all_its_pods(tmp_path: Path) -> None:
    text = Path("examples/fashion-mnist.yaml").read_text()
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        path.write_text(text.replace("demo", path.name))
    pods = ("master-0", "worker-0", "worker-1", "worker-2")
    expected = {f"[{path.name}-{pod}] {rank}" for path in paths for rank, pod in enumerate(pods)}
    printed = many.simulate(paths)
    assert (set(printed), len(printed)) == (expected, 8)
