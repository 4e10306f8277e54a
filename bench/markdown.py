"""Formatting of numbers and tables."""

from collections.abc import Collection, Iterator

from bench.spread import Spread


def shown(value: Spread, unit: str = "") -> str:
    """`6,644 [6,100–7,020]`."""
    span = f" [{number(value.low)}–{number(value.high)}]" if value.n > 1 else ""
    return f"{number(value.median)}{unit}{span}"


def number(value: float) -> str:
    """About three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def mark(reached: bool) -> str:
    """Whether a goal is reached."""
    return "✓" if reached else "–"


def markdown(header: list[str], rows: list[list[str]], left: Collection[int] = (0,)) -> list[str]:
    return list(_markdown(header, rows, left))


def _markdown(header: list[str], rows: list[list[str]], left: Collection[int]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' if column in left else '---:' for column in range(len(header)))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
