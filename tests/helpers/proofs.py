"""The proof that a run has written, proof.json."""

import json
from pathlib import Path
from typing import Any

from torchtally.proof.line import PREFIX
from torchtally.proof.statement import Predicate, Statement


def read(path: Path) -> Statement:
    return Statement.parse(path.read_bytes())


def predicate(path: Path) -> Predicate:
    return read(path).predicate


def model(path: Path) -> str:
    """The hash of model.pt, as a run's last line has it."""
    return f"sha256:{read(path).subjects['model.pt']}"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(PREFIX)) for line in predicate(path).lines]
