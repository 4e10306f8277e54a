"""How a proof looks to people: the table that rank 0 prints and the verifier prints again."""

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = ("phase", "epoch", "pod", "rank", "expected", "consumed", "lost", "doubled")
_LEFT = ("phase", "pod")
_WIDTHS = {"phase": 5, "epoch": 5, "pod": 20, "rank": 5, "expected": 9, "consumed": 9, "lost": 6, "doubled": 7}
_MANY = 16  # ranks; beyond, only rows that are wrong and the sum are shown


def header() -> str:
    """The line above the rows."""
    return _aligned({name: name for name in _COLUMNS})


def rows(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each tally line of one phase, the last line being that of all ranks together."""
    *ranks, everything = lines
    shown = [line for line in ranks if len(ranks) <= _MANY or not _right(line)]
    verdict = "✓ every sample exactly once" if all(map(_right, lines)) else "✗ not what the contract says"
    if verdict[0] == "✓" and everything["contract"] != "exact":
        verdict = f"✓ as the contract {everything['contract']} says"
    total = {**everything, "pod": "all", "rank": len(ranks)}
    return [*(_aligned(line) for line in shown), f"{_aligned(total)}  {verdict}"]


def _right(line: Mapping[str, Any]) -> bool:
    return not line["lost"] and not line["doubled"]


def _aligned(line: Mapping[str, Any]) -> str:
    cells = (
        f"{line[name]!s:<{_WIDTHS[name]}}" if name in _LEFT else f"{line[name]!s:>{_WIDTHS[name]}}" for name in _COLUMNS
    )
    return "  ".join(cells).rstrip()
