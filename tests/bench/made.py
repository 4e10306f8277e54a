"""Results of the benchmarks, made by hand."""

from collections.abc import Iterable

from bench.results import Results
from bench.sample import Better, Sample

MACHINE: dict[str, str | int | float] = {"processor": "A", "cores": 2, "memory_gb": 8}


def results(**machine: str | int | float) -> Results:
    """None yet."""
    return Results(began="then", seconds=1.0, commit="c", machine=MACHINE | machine, versions={"torch": "2"})


def add(found: Results, measure: str, values: Iterable[float], better: Better = "higher", **case: str | int) -> None:
    """One value of each round."""
    for number, value in enumerate(values, 1):
        found.add(Sample(measure=measure, case=case, unit="s", better=better, value=value), number, 0.5)
