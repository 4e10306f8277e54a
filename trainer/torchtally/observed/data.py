"""Whether ranks have the same data under the same indices, by the checksums of a few samples' leaves."""

import functools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from itertools import combinations, pairwise

from torchtally.observed.line import Handed
from torchtally_observer import sketch

_DIGITS = 6  # of a leaf


class Data(Enum):
    SAME = "the same"
    ASSUMED = "nothing tells otherwise"  # no sample was seen on two ranks, and the datasets' attributes are equal
    DIFFERENT = "different"
    UNKNOWN = "not known"


def of(lines: Iterable[Handed]) -> Data:
    """Compare the data of several ranks, from all their passes over one base."""
    lines = [line for line in lines if line.base]
    if len({(line.base.type, line.base.length) for line in lines if line.base}) > 1:
        return Data.DIFFERENT
    alike = len({line.base.attributes for line in lines if line.base}) <= 1
    seen: dict[int, dict[str, list[tuple[str, ...]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        own = _of_indices((line.base and line.base.length) or 0)
        for number, text in line.contents.items():
            if text not in own.get(number, ()):
                seen[line.rank][number].append(_leaves(text))
    common = [
        (seen[a][number][0], seen[b][number][0])
        for a, b in combinations(sorted(seen), 2)
        for number in seen[a].keys() & seen[b].keys()
    ]
    common = [(a, b) for a, b in common if a and len(a) == len(b)]
    read = all(line.base.rows for line in lines if line.base)
    if not common:
        known = alike and not _moves(seen)
        return (Data.SAME if read else Data.ASSUMED) if known else Data.UNKNOWN
    leaves = range(min(len(a) for a, _ in common))
    if all(a == b for a, b in common):
        return Data.SAME
    if any(_stable(seen, leaf) and any(a[leaf] != b[leaf] for a, b in common) for leaf in leaves):
        return Data.DIFFERENT
    # Labels that are equal, and differ among samples, are those of one dataset, whose images are augmented.
    equal = [leaf for leaf in leaves if all(a[leaf] == b[leaf] for a, b in common)]
    labels = [leaf for leaf in equal if len({a[leaf] for a, _ in common}) > 1 and (read or _recurs(seen, leaf))]
    return Data.SAME if labels and alike else Data.UNKNOWN


@functools.lru_cache(maxsize=16)
def _of_indices(length: int) -> dict[str, tuple[str, str]]:
    """The checksums of samples that are their own indices, as in a loader of indices: the data is elsewhere."""
    indices = sketch.of_contents(sketch.chosen(length))
    return {str(number): (_sum(each.to_bytes(8, "little")), _sum(b"%d" % each)) for number, each in enumerate(indices)}


def _sum(raw: bytes) -> str:
    return f"{zlib.crc32(raw) & 0xFFFFFF:06x}"


def _moves(seen: dict[int, dict[str, list[tuple[str, ...]]]]) -> bool:
    """Whether no leaf stays in any sample that was read again, as where a dataset shuffles its samples itself."""
    again = [each for own in seen.values() for each in own.values() if len(each) > 1]
    return bool(again) and not any(_stable(seen, leaf) for leaf in range(max(len(each[0]) for each in again)))


def _stable(seen: dict[int, dict[str, list[tuple[str, ...]]]], leaf: int) -> bool:
    """Whether a leaf was read twice on some rank, and was the same whenever it was."""
    again = [each for own in seen.values() for each in own.values() if len(each) > 1]
    again = [each for each in again if all(len(leaves) > leaf for leaves in each)]
    return bool(again) and all(len({leaves[leaf] for leaves in each}) == 1 for each in again)


def _recurs(seen: dict[int, dict[str, list[tuple[str, ...]]]], leaf: int) -> bool:
    """Whether a value comes again after others. An index, or labels that are sorted, may be alike in all files."""
    own = seen[min(seen)]
    values = [own[number][0][leaf] for number in sorted(own, key=int) if len(own[number][0]) > leaf]
    return 1 + sum(a != b for a, b in pairwise(values)) > len(set(values))


def _leaves(text: str) -> tuple[str, ...]:
    return tuple(text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS))
