"""Medians with their spread, ratios, and whether two samples differ by more than noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """The median and the extremes, which with few values say more than quartiles."""
    return Spread(float(np.median(values)), min(values), max(values), len(values))


def ratios(ours: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Round by round: what slows the machine down for a while slows both."""
    return [ours[each] / others[each] for each in sorted(ours.keys() & others.keys())]


def chance(old: Sequence[float], new: Sequence[float]) -> float:
    """How likely it is that two samples of one distribution differ as much in their ranks (Mann and Whitney's test)."""
    tied = len({*old, *new}) < len(old) + len(new)
    return float(stats.mannwhitneyu(old, new, method="asymptotic" if tied else "exact").pvalue)


def least_chance(old: int, new: int) -> float:
    """The least that `chance` can be with so many values: of samples that do not overlap."""
    return chance(range(old), range(old, old + new))
