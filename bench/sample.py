"""One number that was measured: a line of JSON on the way from the program that measured it to the file of results."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

Better = Literal["higher", "lower"]
PREFIX = "SAMPLE "


@dataclass(frozen=True, kw_only=True)
class Sample:
    """`case` says of what: {"tool": "blog", "world": 2}."""

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
    """The samples that a program has printed among other lines."""
    lines = (line.removeprefix(PREFIX) for line in output.splitlines() if line.startswith(PREFIX))
    return [Sample(**json.loads(line)) for line in lines]
