"""A measured value, or a note, which a program prints as a line of JSON for the file of results."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

Better = Literal["higher", "lower"]
PREFIX = "SAMPLE "
_NOTE = "NOTE "


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A value of a measure in a case, such as {"tool": "blog", "world": 2}."""

    measure: str
    case: dict[str, str | int]
    unit: str
    better: Better
    value: float


def emit(measure: str, value: float, unit: str, better: Better, **case: str | int) -> None:
    """Print a sample."""
    sample = Sample(measure=measure, case=case, unit=unit, better=better, value=value)
    print(PREFIX + json.dumps(asdict(sample)), flush=True)


def found_in(output: str) -> list[Sample]:
    """The samples in a program's output."""
    lines = (line.removeprefix(PREFIX) for line in output.splitlines() if line.startswith(PREFIX))
    return [Sample(**json.loads(line)) for line in lines]


def note(what: str, text: str) -> None:
    """Print what is worth knowing beside the values."""
    print(_NOTE + json.dumps([what, text]), flush=True)


def notes_in(output: str) -> dict[str, str]:
    """The notes in a program's output."""
    return dict(json.loads(line.removeprefix(_NOTE)) for line in output.splitlines() if line.startswith(_NOTE))
