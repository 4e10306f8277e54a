"""The tables of faults, one of this machine and one of a cluster: build/faults/NAME.jsonl as measured, NAME.md to read.

Whatever ran last stands in the table; what an earlier run of the same fault and restartPolicy found is replaced.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

FOLDER = Path(__file__).resolve().parents[2] / "build" / "faults"
_HEAD = """\
| fault | restartPolicy | restarts | lost | duplicated | same weights | last start, s | entry point, s | next step, s |
| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |
"""


@dataclass(frozen=True)
class Row:
    """What a fault led to."""

    fault: str
    policy: str
    restarts: int  # of all pods together
    lost: int  # samples, in what led to the final weights
    duplicated: int
    same_weights: bool | None  # as in an undisturbed run; None with another number of ranks
    # Seconds from the fault; None where nothing like it followed before the next step, or no step.
    started: float | None  # to the last start of a container
    entered: float | None  # to the last first word of an entry point: PyTorch is imported
    stepped: float | None  # to the next step

    @property
    def key(self) -> tuple[str, str]:
        return self.fault, self.policy


def record(name: Literal["local", "cluster"], row: Row, folder: Path = FOLDER) -> None:
    """Add a row to the table `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = folder / f"{name}.jsonl"
    with FileLock(folder / f".{name}.lock"):
        with measured.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        rows: dict[tuple[str, str], Row] = {}
        for line in measured.read_text().splitlines():
            found = json.loads(line)
            if found.keys() == asdict(row).keys():  # another version may have been here before
                known = Row(**found)
                rows[known.key] = known
        (folder / f"{name}.md").write_text(_HEAD + "".join(map(_markdown, rows.values())))


def last(moments: Iterable[float], fault: float, step: float | None) -> float | None:
    """Seconds from the fault to the last of `moments` that lies between it and the next step, which is as late."""
    between = [each - fault for each in moments if step is not None and 0 < each - fault <= step]
    return max(between, default=None)


def lost_and_duplicated(report: Mapping[str, Any]) -> tuple[int, int]:
    """Over all phases and epochs of what `verify_shards.py --json` prints; where it could not count, all samples."""

    def total(name: str) -> int:
        counts = [(tally[name], tally["n"]) for tally in report["tallies"] if tally["rank"] == "all"]
        return sum(n if count is None else count for count, n in counts)

    return total("lost"), total("duplicated")


def _markdown(row: Row) -> str:
    same = {True: "yes", False: "no", None: "–"}[row.same_weights]
    seconds = ("–" if each is None else f"{each:.1f}" for each in (row.started, row.entered, row.stepped))
    cells = (row.fault, row.policy, row.restarts, row.lost, row.duplicated, same, *seconds)
    return f"| {' | '.join(map(str, cells))} |\n"
