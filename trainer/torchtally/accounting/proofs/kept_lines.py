"""The tally lines that rank 0 has seen since its start, for its proof and its page: all, as far as there is room."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.proof import table

_MOST = 5000  # lines that report no fault; those of all ranks together, and those with a fault, are always kept
_kept: list[Mapping[str, Any]] = []


def add(lines: Sequence[Mapping[str, Any]]) -> None:
    """Keep the lines of a proof."""
    room = len(_kept) + len(lines) <= _MOST
    _kept.extend(line for line in lines if room or line["rank"] == "all" or table.wrong(line))


def of_all_ranks(run: str) -> list[Mapping[str, Any]]:
    """Those of this run that are of all ranks together."""
    return [line for line in _kept if line["run"] == run and line["rank"] == "all"]


def lines(run: str) -> list[Mapping[str, Any]]:
    """Those of this run, each once, in the order of the run: ranks, and then all of them."""

    def place(line: Mapping[str, Any]) -> tuple[float, ...]:
        rank = float("inf") if line["rank"] == "all" else line["rank"]
        return line["attempt"], line.get("began", 0), line["epoch"], [*line["plan"]].index(line["phase"]), rank

    every: list[Mapping[str, Any]] = []
    for line in sorted((line for line in _kept if line["run"] == run), key=place):
        if not every or line != every[-1]:
            every.append(line)
    return every
