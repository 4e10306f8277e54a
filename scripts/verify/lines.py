"""Tally lines, and the last lines of runs, out of logs: found anywhere in a line, read as JSON, every value checked."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TextIO

from torchtally.proof.digest import Digest, P, unpacked

from . import closing
from .closing import Closing
from .fields import HUGE, MANY, Fields, short, show
from .words import differing

PREFIX = "TORCHTALLY "
VERSION = 2
NAMED = 8  # lost and doubled samples that a line names at most
# A prefix counts where a line could have begun: before JSON, or cut off right behind itself.
_START = re.compile(re.escape(PREFIX) + r"(?=\{|\s*$)")
_LINEAGE = re.compile(r'"run":\s*"([^"]+)",\s*"attempt":\s*(\d{1,9})\b')
_IN_COMMON = (
    *("run", "attempt", "task", "phase", "epoch", "plan", "world"),
    *("n", "start", "batch", "seed", "contract", "order", "data"),
)
_known: dict[str, dict[str, Any]] = {}  # what was found right before, by how it is written
_MOST_KNOWN = 1 << 10
_DECODER = json.JSONDecoder()
_LONGEST = 1 << 20  # characters of one line held at a time; a tally line has under 1 KB


@dataclass(frozen=True, slots=True)
class Tally:
    """One line: what one rank, or all of them together, consumed in one phase of one epoch."""

    run: str
    attempt: int
    pod: str
    task: str
    phase: str
    epoch: int
    plan: dict[str, int]
    rank: int | Literal["all"]
    world: int
    n: int
    start: int
    batch: int
    seed: int
    contract: str
    order: str
    data: str
    expected: int
    consumed: int
    packed: bytes  # its digest, see `digest`
    lost: int | None  # both or none; None: more than could be counted
    doubled: int | None
    lost_indices: tuple[int, ...] = ()
    doubled_indices: tuple[int, ...] = ()

    @property
    def block(self) -> tuple[str, int]:
        return self.phase, self.epoch

    @property
    def digest(self) -> Digest:
        return unpacked(self.packed)

    @property
    def outside(self) -> int:
        """How many of the consumed indices are of no sample: no word of the digest holds them."""
        return (self.consumed - self.digest.words[0]) % P

    def differs(self, other: "Tally") -> list[str]:
        """Names of the fields in which the two are not equal."""
        return [name for name in NAMES if getattr(self, name) != getattr(other, name)]


NAMES = tuple("digest" if f.name == "packed" else f.name for f in fields(Tally))  # of the line's fields


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why something read is no evidence; of which run, attempt and phase and epoch, as far as the text still tells."""

    text: str
    run: str | None = None
    attempt: int | None = None
    block: tuple[str, int] | None = None
    no_log: bool = False  # of a pod, and nothing that was read


@dataclass
class Log:
    """Everything read so far. Holds tally lines only, so that a log of any length fits."""

    tallies: dict[tuple[Any, ...], Tally] = field(default_factory=dict)
    closings: dict[str, Closing] = field(default_factory=dict)  # by run
    complaints: list[Complaint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def read(self, source: str, stream: TextIO) -> None:
        self.sources.append(source)
        number = 1
        while line := stream.readline(_LONGEST):
            if PREFIX.rstrip() in line:
                for found in _found_in(line):
                    if isinstance(found, Tally):
                        self._add(found, source, number)
                    elif isinstance(found, Closing):
                        self._close(found, f"{source}:{number}")
                    else:
                        text = f"{source}:{number}: {found.text}"
                        self.complaints.append(Complaint(text, found.run, found.attempt))
            number += line.endswith("\n")

    def _add(self, tally: Tally, source: str, number: int) -> None:
        key = (tally.run, tally.attempt, tally.phase, tally.epoch, tally.rank)
        twin = self.tallies.setdefault(key, tally)
        if twin is not tally and (names := tally.differs(twin)):
            values = "; ".join(_both(name, twin, tally) for name in names)
            who = "all ranks" if tally.rank == "all" else f"rank {tally.rank}"
            what = f"{tally.phase} epoch {tally.epoch} of {who} is printed twice and differs: {values}"
            text = f"{source}:{number}: {what}"
            self.complaints.append(Complaint(text, tally.run, tally.attempt, tally.block))

    def _close(self, line: Closing, where: str) -> None:
        twin = self.closings.setdefault(line.run, line)
        if differences := "; ".join(twin.differs(line)):
            text = f"{where}: the last line of run {line.run} is printed twice and differs: {differences}"
            self.complaints.append(Complaint(text, line.run))  # of no attempt: there is but one end
        else:  # an attempt that found all done printed it again: the first one counts, in whatever order they are read
            self.closings[line.run] = min(line, twin, key=lambda each: (each.attempt, each.pod))


def _both(name: str, one: Tally, other: Tally) -> str:
    if name == "digest":
        return f"digest in {differing(one.digest, other.digest)}"
    return f"{name} {getattr(one, name)} and {getattr(other, name)}"


def _found_in(line: str) -> Iterator[Tally | Closing | Complaint]:
    """Each line that starts in `line`, or what is wrong with it."""
    at = 0
    while start := _START.search(line, at):
        at = start.end()
        try:
            values, at = _DECODER.raw_decode(line, at)
            yield parse(values)
        except json.JSONDecodeError as error:
            cut = not line[error.pos :].strip() or error.msg.startswith("Unterminated string")
            how = "cut off" if cut else "mixed up with other output"
            shown = re.sub(r"[^ -~]", "?", line[start.start() :].rstrip())  # it goes to a terminal
            yield Complaint(f"a tally line is {how}: {short(shown, 100)}", *_lineage(line, start.end()))
        except (ValueError, RecursionError) as error:  # numbers or nesting beyond what Python's parser takes, too
            yield Complaint(f"bad tally line: {error}", *_lineage(line, start.end()))


def _lineage(line: str, at: int) -> tuple[str | None, int | None]:
    """Run and attempt of what begins at `at`, as far as it can still be read."""
    following = line.find(PREFIX, at)
    found = _LINEAGE.search(line, at, following if following >= 0 else len(line))
    return (found[1], int(found[2])) if found else (None, None)


def parse(values: dict[str, Any]) -> Tally | Closing:
    """What the line with these `values` states; ValueError says which field cannot be."""
    known = f"only version {VERSION} is read"
    if values.get("v") != VERSION or type(values["v"]) is not int:
        if "v" not in values:
            raise ValueError('"v" (its version) is missing')
        if type(values["v"]) is int and values["v"] == 1:
            raise ValueError(f"version 1 of the line is from an earlier torchtally and has another digest, {known}")
        raise ValueError(f"version {show(values['v'])} of the line is not known here, {known}")
    return closing.parse(values) if closing.is_closing(values) else _tally(values)


def _tally(values: dict[str, Any]) -> Tally:
    line = Fields(values)

    def count(name: str, other: str) -> int | None:
        if name in values and values[name] is None:
            if values.get(other, 0) is None:
                return None
            raise line.bad(name, f'an integer from 0 to {HUGE}, or null where "{other}" is null too')
        return line.integer(name, 0, HUGE)

    def indices(name: str, count: int | None, low: int, high: int) -> tuple[int, ...]:
        if name not in values:
            return ()
        value, most = values[name], min(count or 0, NAMED)
        if isinstance(value, list) and len(value) <= most and all(type(i) is int and low <= i <= high for i in value):
            return tuple(value)
        raise line.bad(name, f"a list of at most {most} integers from {low} to {high}")

    common = _common(line)
    if values.get("rank") != "all":
        try:
            line.integer("rank", 0, common["world"] - 1)
        except ValueError as error:
            whole = f'{error} (world is {common["world"]}), or "all"'
            raise ValueError(whole if "rank" in values else str(error)) from None
    packed = line.packed()
    consumed = line.integer("consumed", 0, HUGE)
    counted = int.from_bytes(packed[:8], "big")
    if consumed < counted:
        raise line.bad("consumed", f"no less than the {counted} samples that its digest counts")
    lost, doubled = count("lost", "doubled"), count("doubled", "lost")
    return Tally(
        **common,
        pod=sys.intern(line.text("pod")),
        rank=values["rank"],
        expected=line.integer("expected", 0, HUGE),
        consumed=consumed,
        packed=packed,
        lost=lost,
        doubled=doubled,
        lost_indices=indices("lost_indices", lost, 0, common["n"] - 1),
        doubled_indices=indices("doubled_indices", doubled, -HUGE, HUGE - 1),
    )


def _common(line: Fields) -> dict[str, Any]:
    """What the lines of all ranks have in common in an epoch: checked once, and held once."""
    asked = repr([line.values.get(name) for name in _IN_COMMON])  # as values, True would be 1
    if not (common := _known.get(asked)):
        plan = line.plan()
        phase = line.choice("phase", tuple(plan))
        world = line.integer("world", 1, MANY)
        n = line.samples()
        common = {
            "run": line.text("run"),
            "attempt": line.integer("attempt", 0, HUGE),
            "task": line.text("task"),
            "phase": phase,
            "epoch": line.integer("epoch", 1, plan[phase]),
            "plan": plan,
            "world": world,
            "n": n,
            "start": line.integer("start", 0, n - 1),
            "batch": line.integer("batch", 1, HUGE),
            "seed": line.seed(),
            "contract": line.contract(),
            "order": line.order(),
            "data": line.text("data"),
        }
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known[asked] = common
    return common
