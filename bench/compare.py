"""Compares two files of results: measures that are faster or slower by more than noise.

compare OLD.json [NEW.json]    NEW.json is the latest by default

The speed of a machine varies over hours, so values are relative to the blog's loop if the same round measured it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import results, spread
from bench.markdown import markdown, shown
from bench.results import Results, Series

ANCHOR = "blog"
CHANCE = 0.01  # significance level for each row; with 5 values each, it needs values that do not overlap
Verdict = Literal["better", "worse", "within noise", "too few values to say"]
FEW: Verdict = "too few values to say"


@dataclass(frozen=True)
class Row:
    what: str
    unit: str
    old: spread.Spread
    new: spread.Spread
    chance: float
    verdict: Verdict

    @property
    def change(self) -> float:
        """The ratio of the new median to the old one."""
        return self.new.median / self.old.median if self.old.median else float("inf")

    @property
    def apart(self) -> bool:
        """Whether all new values are above, or all below, the old ones."""
        return self.new.low > self.old.high or self.new.high < self.old.low


def main(argv: list[str]) -> int:
    try:
        before = results.load(Path(argv[0]))
        after = results.load(Path(argv[1]) if argv[1:] else results.newest())
    except (OSError, ValueError) as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    print(report(before, after))
    return 0


def report(before: Results, after: Results) -> str:
    compared = list(rows(before, after))
    text = [f"{before.commit} of {before.began} -> {after.commit} of {after.began}", ""]
    text += [
        f"note: another {name}: {value} -> {after.machine.get(name)}"
        for name, value in before.machine.items()
        if after.machine.get(name) != value
    ]
    text += [
        f"note: another {name}: {value} -> {after.versions.get(name)}"
        for name, value in before.versions.items()
        if after.versions.get(name) != value
    ]
    cells = [
        [
            row.what,
            shown(row.old),
            shown(row.new),
            row.unit,
            f"{row.change:.2f}",
            f"{row.chance:.3f}",
            row.verdict,
        ]
        for row in compared
    ]
    text += markdown(["what", "old", "new", "unit", "new / old", "chance", "verdict"], cells, left=(0, 3, 6))
    old, new = ({each.key for each in side.series} for side in (before, after))
    gone, added = len(old - new), len(new - old)
    few = [row for row in compared if row.verdict == FEW]
    judged = len(compared) - len(few)
    beyond = sum(row.verdict in ("better", "worse") for row in compared)
    apart = sum(row.apart for row in few)
    usual = sum(spread.least_chance(row.old.n, row.new.n) for row in few)
    text += [
        "",
        f"{beyond} of {judged} rows are beyond noise; by chance {CHANCE * judged:.1f} would be. "
        f"{len(few)} more have too few values to say; in {apart} of these, old and new values do not "
        f"overlap; by chance {usual:.0f} would not.",
        f"Measured before alone: {gone}; now alone: {added}.",
    ]
    return "\n".join(text)


def rows(before: Results, after: Results) -> Iterator[Row]:
    """A row for each series that both files have. The anchor's own rows show the speed of the machine."""
    for new in after.series:
        old = next((each for each in before.series if each.key == new.key), None)
        if old is None:
            continue
        what = f"{new.measure}: {', '.join(str(value) for value in new.case.values())}"
        values = [_relative(before, old), _relative(after, new)]
        if new.case.get("tool") != ANCHOR and all(values):
            yield _row(f"{what}, of {ANCHOR}'s", "ratio", values[0], values[1], new)
        else:
            yield _row(what, new.unit, old.values, new.values, new)


def _relative(side: Results, series: Series) -> list[float]:
    """Ratios of the series to the anchor's of the same case; empty if there is no anchor."""
    anchor = side.one(series.measure, **{**series.case, "tool": ANCHOR}) if "tool" in series.case else None
    return spread.ratios(series.by_round, anchor.by_round) if anchor else []


def _row(what: str, unit: str, old: list[float], new: list[float], series: Series) -> Row:
    chance = spread.chance(old, new)
    verdict: Verdict = "within noise"
    if spread.least_chance(len(old), len(new)) > CHANCE:
        verdict = FEW
    elif chance <= CHANCE:
        gained = spread.spread(new).median > spread.spread(old).median
        verdict = "better" if gained == (series.better == "higher") else "worse"
    return Row(what, unit, spread.spread(old), spread.spread(new), chance, verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
