"""Medians with their spread, ratios, and whether two samples differ by more than noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """The median and the extremes, which describe a few values better than quartiles."""
    return Spread(float(np.median(values)), min(values), max(values), len(values))


def ratios(ours: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Ratios of the values of each round, because a slow phase of the machine affects both."""
    return [ours[each] / others[each] for each in sorted(ours.keys() & others.keys())]


def chance(old: Sequence[float], new: Sequence[float]) -> float:
    """The p-value of the two-sided Mann-Whitney U test."""
    from scipy import stats  # where `make bench-gpu` runs there may be none

    tied = len({*old, *new}) < len(old) + len(new)
    return float(stats.mannwhitneyu(old, new, method="asymptotic" if tied else "exact").pvalue)


def least_chance(old: int, new: int) -> float:
    """The smallest possible `chance` for these numbers of values: that of samples that do not overlap."""
    return chance(range(old), range(old, old + new))
