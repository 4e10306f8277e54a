"""Lines that differ in nothing but what is each rank's own. There may be a million: most are held as numbers."""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from torchtally.proof import digest
from torchtally.proof.line import Rank, TallyLine
from torchtally.proof.modular import Words

_COUNTS = struct.Struct(">2Q")
_WORDS = 2 + digest.WORDS  # of a plain line: expected, consumed, and its digest
_BYTES = 8 * _WORDS
_PLAIN = {"pod", "rank", "expected", "consumed", "digest", "lost", "duplicated"}


class Lines:
    """Lines of one attempt about one phase of one epoch, which agree in all that ranks have in common.

    A plain line is that of a rank, not of all together, and reports nothing lost, duplicated, or dropped.
    """

    def __init__(self, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.first = TallyLine(**shared, **own)  # has all that they have in common
        self.shared = shared
        self._others: dict[Rank, Mapping[str, Any]] = {}  # what is not plain
        # Of plain lines, in the order in which they came. Pods are the same in each epoch.
        self._ranks, self._pods, self._numbers = array("i"), list[str](), bytearray()
        self._places = array("i")  # by rank: which of them is its line, or -1
        self.add(own)

    def fits(self, shared: Mapping[str, Any]) -> bool:
        """Whether lines with these fields in common are among these."""
        return self.shared is shared or (
            self.shared == shared and [*self.shared["plan"]] == [*shared["plan"]]  # phases have an order
        )

    def add(self, own: Mapping[str, Any]) -> None:
        """Add the line of a rank that has none here, by the fields that are its own."""
        rank = own["rank"]
        if rank == "all" or own.keys() != _PLAIN or own["lost"] != 0 or own["duplicated"] != 0:
            self._others[rank] = own
            return
        if (more := rank + 1 - len(self._places)) > 0:
            self._places.extend([-1] * more)
        self._places[rank] = len(self._ranks)
        self._ranks.append(rank)
        self._pods.append(sys.intern(own["pod"]))
        self._numbers += _COUNTS.pack(own["expected"], own["consumed"]) + own["digest"]

    def line(self, rank: Rank) -> TallyLine | None:
        """The line of a rank, or that of all together, if it is here."""
        own = self._others.get(rank) or self._plain(rank)
        return TallyLine(**self.shared, **own) if own else None

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
        return [TallyLine(**self.shared, **own) for own in self._others.values()]

    @property
    def faulty(self) -> bool:
        """Whether one of the lines reports a sample as lost or duplicated."""
        return any(own["lost"] != 0 or own["duplicated"] != 0 for own in self._others.values())

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
        found.first, found.shared = replace(self.first, plan=plan), {**self.shared, "plan": plan}
        return found

    def _plain(self, rank: Rank) -> dict[str, Any] | None:
        if rank == "all" or rank >= len(self._places) or (at := self._places[rank]) < 0:
            return None
        numbers = bytes(self._numbers[_BYTES * at : _BYTES * (at + 1)])
        expected, consumed = _COUNTS.unpack_from(numbers)
        counts = {"expected": expected, "consumed": consumed, "lost": 0, "duplicated": 0}
        return {"pod": self._pods[at], "rank": rank, "digest": numbers[_COUNTS.size :], **counts}


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
