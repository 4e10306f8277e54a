"""Lines that differ in nothing but what is each rank's own. There may be a million: most are held as numbers."""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from torchtally.proof import digest
from torchtally.proof.line import OWN, Rank, Shared, TallyLine
from torchtally.proof.modular import Words

_COUNTS = struct.Struct(">2Q")
_WORDS = 2 + digest.WORDS  # of a plain line: expected, consumed, and its digest
_BYTES = 8 * _WORDS
_HELD = ("pod", "rank", "expected", "consumed", "digest")
_NOTHING: dict[str, Any] = {name: None for name in OWN if name not in _HELD}
_NOTHING |= {"lost": 0, "duplicated": 0, "lost_indices": (), "duplicated_indices": ()}
_REPORTS_NOTHING = tuple(_NOTHING.values())
_reported, _own = attrgetter(*_NOTHING), attrgetter(*OWN)


class Lines:
    """Lines of one attempt about one phase of one epoch, which agree in all that ranks have in common.

    A plain line is that of a rank, not of all together, and reports nothing lost, duplicated, or dropped.
    """

    def __init__(self, first: TallyLine) -> None:
        self.first = first  # has all that they have in common
        self.shared: Shared = first.shared
        self._others: dict[Rank, TallyLine] = {}  # what is not plain
        # Of plain lines, in the order in which they came. Pods are the same in each epoch.
        self._ranks, self._pods, self._numbers = array("i"), list[str](), bytearray()
        self._places = array("i")  # by rank: which of them is its line, or -1
        self.add(first)

    def add(self, line: TallyLine) -> None:
        """Add the line of a rank that has none here."""
        rank = line.rank
        if rank == "all" or _reported(line) != _REPORTS_NOTHING:
            own = dict(zip(OWN, _own(line), strict=True))
            self._others[rank] = replace(self.first, **own)  # so that what is common is held once
            return
        if (more := rank + 1 - len(self._places)) > 0:
            self._places.extend([-1] * more)
        self._places[rank] = len(self._ranks)
        self._ranks.append(rank)
        self._pods.append(sys.intern(line.pod))
        self._numbers += _COUNTS.pack(line.expected, line.consumed) + digest.pack(line.digest)

    def line(self, rank: Rank) -> TallyLine | None:
        """The line of a rank, or that of all together, if it is here."""
        return self._others.get(rank) or self._plain(rank)

    def __len__(self) -> int:
        return len(self._ranks) + len(self._others)

    @property
    def ranks(self) -> list[Rank]:
        """The ranks of all lines."""
        return [*self._ranks, *self._others]

    def ranks_but(self, most: float) -> list[Rank]:
        """Those of more than `most` ranks that are not plain."""
        return self.ranks if self.first.world <= most else [*self._others]

    @property
    def place(self) -> float:
        """That of the first line in the order of ranks."""
        return min(map(_place, self.ranks))

    @property
    def others(self) -> list[TallyLine]:
        """The lines that are not plain."""
        return [*self._others.values()]

    @property
    def faulty(self) -> bool:
        """Whether one of the lines reports a sample as lost or duplicated."""
        return any(line.lost != 0 or line.duplicated != 0 for line in self._others.values())

    @property
    def plain_ranks(self) -> Words:
        """The ranks of the plain lines."""
        return np.array(self._ranks, dtype=np.uint64)

    @property
    def plain_numbers(self) -> Words:
        """For each of `plain_ranks` a row: expected, consumed, and the words of the digest."""
        return np.frombuffer(self._numbers, ">u8").reshape(-1, _WORDS).astype(np.uint64)

    def with_plan(self, plan: Mapping[str, int]) -> "Lines":
        """The same lines with another plan."""
        found = copy(self)
        found.first = replace(self.first, plan=plan)
        found.shared = found.first.shared
        found._others = {rank: replace(line, plan=plan) for rank, line in self._others.items()}
        return found

    def _plain(self, rank: Rank) -> TallyLine | None:
        if rank == "all" or rank >= len(self._places) or (at := self._places[rank]) < 0:
            return None
        numbers = bytes(self._numbers[_BYTES * at : _BYTES * (at + 1)])
        expected, consumed = _COUNTS.unpack_from(numbers)
        counts = {"expected": expected, "consumed": consumed, "digest": digest.as_text(numbers[_COUNTS.size :])}
        return replace(self.first, pod=self._pods[at], rank=rank, **counts, **_NOTHING)


def firsts(groups: Iterable[Lines]) -> list[TallyLine]:
    """A line of each, which has all that its lines have in common."""
    return [each.first for each in groups]


def together(groups: Iterable[Lines]) -> TallyLine | None:
    """The line of all ranks together, if there is one."""
    return next((line for each in groups if (line := each.line("all"))), None)


def in_order(groups: Iterable[Lines], most: float = float("inf")) -> Iterator[TallyLine]:
    """The lines of each phase and epoch by rank; of more ranks than `most`, without the plain ones."""
    for _, same in groupby(groups, lambda each: each.first.block):
        found = [(_place(rank), rank, each) for each in same for rank in each.ranks_but(most)]
        for _, rank, each in sorted(found, key=itemgetter(0)):
            line = each.line(rank)
            assert line
            yield line


def ranks_of(groups: Iterable[Lines]) -> list[Rank]:
    """The ranks of all their lines."""
    return [rank for each in groups for rank in each.ranks]


def blocks_of(groups: Iterable[Lines]) -> frozenset[tuple[str, int]]:
    """Their phases and epochs."""
    return frozenset(each.first.block for each in groups)


def _place(rank: Rank) -> float:
    return float("inf") if rank == "all" else rank
