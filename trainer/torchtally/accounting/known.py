"""The tally lines that rank 0 has seen since its start, for its page: all of them, as far as there is room."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.proof import table

_MOST = 5000  # lines that report no fault; those of all ranks together, and those with a fault, are always kept
_kept: list[Mapping[str, Any]] = []


def add(lines: Sequence[Mapping[str, Any]]) -> None:
    """Keep the lines of a proof."""
    room = len(_kept) + len(lines) <= _MOST
    _kept.extend(line for line in lines if room or line["rank"] == "all" or table.wrong(line))


def lines(run: str) -> list[Mapping[str, Any]]:
    """Those of this run."""
    return [line for line in _kept if line["run"] == run]
