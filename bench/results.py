"""A file of results: all samples of a run of `make bench`, and its machine. The goals and the comparison read it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.sample import Better, Sample

VERSION = 1
FOLDER = Path("bench/results")
ON_GPU = FOLDER / "gpu"
Key = tuple[str, tuple[tuple[str, str | int], ...]]


@dataclass
class Series:
    """All values of one measure of one case, with the round and the load average of each."""

    measure: str
    case: dict[str, str | int]
    unit: str
    better: Better
    values: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.measure, tuple(sorted(self.case.items()))

    @property
    def by_round(self) -> dict[int, float]:
        return dict(zip(self.rounds, self.values, strict=True))


@dataclass
class Results:
    """One run of `make bench`."""

    began: str  # ISO 8601
    seconds: float
    commit: str
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    series: list[Series] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # by a program or a subject, such as why there is no value

    def add(self, sample: Sample, round: int, load: float) -> None:
        new = Series(sample.measure, sample.case, sample.unit, sample.better)
        series = next((each for each in self.series if each.key == new.key), None)
        if series is None:
            series = new
            self.series.append(new)
        series.values.append(sample.value)
        series.rounds.append(round)
        series.loads.append(load)

    def of(self, measure: str, **case: str | int) -> list[Series]:
        """The series of a measure whose cases have these values, in the order of measurement."""
        return [each for each in self.series if each.measure == measure and case.items() <= each.case.items()]

    def one(self, measure: str, **case: str | int) -> Series | None:
        return next(iter(self.of(measure, **case)), None)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".part")  # a program that is ended meanwhile leaves the file as it was
        whole.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")
        whole.replace(path)


def newest() -> Path:
    """The file of the latest run."""
    return max(FOLDER.glob("*.json"))


def newest_on_gpu() -> "Results | None":
    """The latest results of a GPU, if there are any. A rehearsal on CPUs is none."""
    files = sorted(ON_GPU.glob("*.json"), reverse=True)
    return next((found for found in map(load, files) if "gpu" in found.machine), None)


def load(path: Path) -> Results:
    """Read a file of results. Raises ValueError for any other file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found.pop("version") != VERSION:
            raise ValueError(f"its version must be {VERSION}")
        series = [Series(**each) for each in found.pop("series")]
        results = Results(**found, series=series)
        if uneven := [each.key for each in series if not len(each.values) == len(each.rounds) == len(each.loads) > 0]:
            raise ValueError(f"{uneven[0]} must have as many values as rounds and loads, and at least one")
        if twice := len(series) - len({each.key for each in series}):
            raise ValueError(f"{twice} series appear twice")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no file of results: {error}") from error
    return results
