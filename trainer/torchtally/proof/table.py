"""How a proof looks to people: the table that rank 0 prints and the verifier prints again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HEADER = ("phase", "epoch", "pod", "rank", "expected", "consumed", "lost", "duplicated")
_LEFT = ("phase", "pod")
_POD_WIDTH = 16  # longer names widen it
_MANY = 64  # ranks; beyond, rank 0 shows only those that are wrong


def cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one tally line; that of all ranks together has their number for its rank."""
    if line["rank"] == "all":
        line = {**line, "pod": "all", "rank": line["world"]}
    return tuple(shown(line[name]) for name in HEADER)


def shown(value: object) -> str:
    """Of what is too much to be counted the lines say null."""
    return "many" if value is None else str(value)


def wrong(line: Mapping[str, Any]) -> bool:
    """Whether a line says that something was lost or duplicated."""
    return (line["lost"], line["duplicated"]) != (0, 0)


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """The header and `rows` of cells as text."""
    table = [HEADER, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths[HEADER.index("pod")] = max(widths[HEADER.index("pod")], _POD_WIDTH)
    return [
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(HEADER, row, widths, strict=True)
        )
        for row in table
    ]


def fulfilled(extra: int, end: int | None = None, dropped: int = 0, drawn: int | None = None) -> str:
    """What a phase's proof has shown, where the contract consumes `extra` samples more (or fewer) than there are.

    `end` is the position before which the epoch ends by plan, `dropped` what the program has dropped, and `drawn` what
    its samplers have drawn, if that is the contract.
    """
    if drawn is not None:
        first = f"the first {drawn} draws of the sampler" if end is not None else f"the {drawn} draws of the sampler"
        return f"{f'{dropped} dropped by the program of ' * bool(dropped)}{first}, each exactly once"
    every, first = "every sample", "the first"
    if dropped:  # in other words from the beginning on, so that nobody takes one for the other
        every, first = (
            f"{dropped} dropped by the program, every other sample",
            f"{dropped} dropped by the program of the first",
        )
    if end is not None:
        return f"{first} {end} samples of the order{', the others' * bool(dropped)} exactly once"
    if extra > 0:
        return f"{every} at least once, {extra} repeated"
    if extra:
        return f"{f'{dropped} dropped by the program, ' * bool(dropped)}no sample twice, {-extra} left out"
    return f"{every} exactly once"


def under(sentence: str) -> str:
    """A sentence on the row above."""
    return f"  {sentence}"


def marks(encoding: str) -> tuple[str, str]:
    """The marks of a proof that holds and of one that does not, for output in this encoding."""
    try:
        "✓✗".encode(encoding)
    except UnicodeEncodeError:
        return "ok:", "not ok:"
    return "✓", "✗"


def of_phase(lines: Sequence[Mapping[str, Any]], encoding: str) -> list[str]:
    """Header, rows and verdict of one phase; the last of `lines` is that of all ranks together."""
    good, wrong_mark = marks(encoding)
    *ranks, everything = lines
    bad = [line for line in lines if wrong(line)]
    rows = ranks if len(ranks) <= _MANY else [line for line in ranks if line in bad]
    text = aligned(map(cells, [*rows, everything]))
    told = fulfilled(
        everything["expected"] - everything["n"],
        everything.get("end"),
        everything.get("dropped") or 0,
        everything["expected"] if "drawn_digest" in everything else None,
    )
    text[-1] += f"  {wrong_mark} not what the contract says" if bad else f"  {good} {told}"
    return text
