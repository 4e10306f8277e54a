"""A proof with given lines, made by hand: as an object of JSON, so that it can be forged."""

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bruteforce
from bruteforce import Line

PREDICATE = "https://github.com/torchtally/torchtally/blob/main/docs/reference/statement-v1.md"
Forge = Callable[[dict[str, Any]], object]


def statement(lines: list[Line], last: Line | None = None, model: str = bruteforce.MODEL[7:], **more: Any) -> Line:
    last = last or bruteforce.last(lines, model=f"sha256:{model}")
    predicate = {
        "run": last["run"],
        "task": last["task"],
        "holds": not any(line["lost"] or line["duplicated"] for line in lines),
        "data": {phase: stated["data"] for phase, stated in last["phases"].items()},
        "torchtally": "0.1.0",
        "lines_sha256": "",
        "lines": bruteforce.text([*lines, last]).splitlines(),
    }
    found = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model.pt", "digest": {"sha256": model}}],
        "predicateType": PREDICATE,
        "predicate": predicate | more,
    }
    rehash(found)
    return found


def rehash(found: dict[str, Any]) -> None:
    """As a forger does who knows the format."""
    text = "".join(f"{line}\n" for line in found["predicate"]["lines"])
    found["predicate"]["lines_sha256"] = hashlib.sha256(text.encode()).hexdigest()


def forged(found: dict[str, Any], forge: Forge) -> dict[str, Any]:
    other = copy.deepcopy(found)
    forge(other)
    return other


def change(number: int, old: str, new: str) -> Forge:
    """Replace text in one of the lines."""

    def forge(found: dict[str, Any]) -> None:
        lines = found["predicate"]["lines"]
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new)

    return forge


def written(path: Path, found: object, indent: int | None = 1) -> Path:
    path.write_text(json.dumps(found, indent=indent))
    return path
