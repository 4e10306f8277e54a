"""Tally lines out of logs: found anywhere in a line, read as JSON, every value checked."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TextIO

from torchtally import digest
from torchtally.digest import Digest

PREFIX = "TORCHTALLY "
VERSION = 2
NAMED = 8  # lost and doubled samples that a line names at most
# A prefix counts where a line could have begun: before JSON, or cut off right behind itself.
_START = re.compile(re.escape(PREFIX) + r"(?=\{|\s*$)")
_LINEAGE = re.compile(r'"run":\s*"([^"]+)",\s*"attempt":\s*(\d{1,9})\b')
_LONGEST = 1 << 20  # characters of one line held at a time; a tally line has under 1 KB
_MANY = 1_000_000  # epochs or ranks, far above any real run: a garbled number must not fill the memory


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
    digest: Digest
    lost: int | None  # both or none; None: more than could be counted
    doubled: int | None
    lost_indices: tuple[int, ...] = ()
    doubled_indices: tuple[int, ...] = ()

    @property
    def block(self) -> tuple[str, int]:
        return self.phase, self.epoch

    @property
    def outside(self) -> int:
        """How many of the consumed indices are of no sample: no word of the digest holds them."""
        return (self.consumed - self.digest.words[0]) % digest.P

    def differs(self, other: "Tally") -> list[str]:
        """Names of the fields in which the two are not equal."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why something read is no evidence; of which run, attempt and phase and epoch, as far as the text still tells."""

    text: str
    run: str | None = None
    attempt: int | None = None
    block: tuple[str, int] | None = None


@dataclass
class Log:
    """Everything read so far. Holds tally lines only, so that a log of any length fits."""

    tallies: dict[tuple[Any, ...], Tally] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def read(self, source: str, stream: TextIO) -> None:
        self.sources.append(source)
        number = 1
        while line := stream.readline(_LONGEST):
            if PREFIX.rstrip() in line:
                for found in _tallies_in(line):
                    if isinstance(found, Tally):
                        self._add(found, f"{source}:{number}")
                    else:
                        text = f"{source}:{number}: {found.text}"
                        self.complaints.append(Complaint(text, found.run, found.attempt))
            number += line.endswith("\n")

    def _add(self, tally: Tally, where: str) -> None:
        key = (tally.run, tally.attempt, tally.phase, tally.epoch, tally.rank)
        twin = self.tallies.setdefault(key, tally)
        if names := tally.differs(twin):
            values = "; ".join(_both(name, twin, tally) for name in names)
            who = "all ranks" if tally.rank == "all" else f"rank {tally.rank}"
            text = f"{where}: {tally.phase} epoch {tally.epoch} of {who} is printed twice and differs: {values}"
            self.complaints.append(Complaint(text, tally.run, tally.attempt, tally.block))


def _both(name: str, one: Tally, other: Tally) -> str:
    if name == "digest":
        return f"digest in {differing(one.digest, other.digest)}"
    return f"{name} {getattr(one, name)} and {getattr(other, name)}"


def differing(one: Digest, other: Digest) -> str:
    """The names of the words that are not the same in both, as the README has them."""
    names = [f"S_{k}" for k in range(digest.POWERS)] + ["G"] + [f"I_{k + 1}" for k in range(digest.INDEX_POWERS)]
    return ", ".join(name for name, a, b in zip(names, one.words, other.words, strict=True) if a != b)


def _tallies_in(line: str) -> Iterator[Tally | Complaint]:
    """Each tally that starts in `line`, or what is wrong with it."""
    decoder = json.JSONDecoder()
    at = 0
    while start := _START.search(line, at):
        at = start.end()
        following = line.find(PREFIX, at)
        lineage = _LINEAGE.search(line, at, following if following >= 0 else len(line))
        run, attempt = (lineage[1], int(lineage[2])) if lineage else (None, None)
        try:
            values, at = decoder.raw_decode(line, at)
            yield parse(values)
        except json.JSONDecodeError as error:
            cut = not line[error.pos :].strip() or error.msg.startswith("Unterminated string")
            how = "cut off" if cut else "mixed up with other output"
            shown = re.sub(r"[^ -~]", "?", line[start.start() :].rstrip())  # it goes to a terminal
            yield Complaint(f"a tally line is {how}: {_short(shown, 100)}", run, attempt)
        except (ValueError, RecursionError) as error:  # numbers or nesting beyond what Python's parser takes, too
            yield Complaint(f"bad tally line: {error}", run, attempt)


def parse(values: dict[str, Any]) -> Tally:
    """The tally that `values` states; ValueError says which field cannot be."""

    def bad(name: str, allowed: str) -> ValueError:
        return ValueError(
            f'"{name}" is {_show(values[name])}, allowed is {allowed}' if name in values else f'"{name}" is missing'
        )

    def text(name: str) -> str:
        value = values.get(name)
        if isinstance(value, str) and value.strip() and value.isprintable():  # printable: it goes to a terminal
            return value
        raise bad(name, "printable text")

    def choice(name: str, allowed: tuple[str, ...]) -> str:
        if values.get(name) in allowed:
            return text(name)
        raise bad(name, " or ".join(allowed))

    def integer(name: str, low: int, high: int) -> int:
        value = values.get(name)
        if type(value) is int and low <= value <= high:
            return value
        raise bad(name, f"an integer from {low} to {high}")

    def count(name: str, other: str) -> int | None:
        if name in values and values[name] is None:
            if values.get(other, 0) is None:
                return None
            raise bad(name, f'an integer from 0 to {huge}, or null where "{other}" is null too')
        return integer(name, 0, huge)

    def indices(name: str, count: int | None, low: int, high: int) -> tuple[int, ...]:
        value, most = values.get(name, []), min(count or 0, NAMED)
        if isinstance(value, list) and len(value) <= most and all(type(i) is int and low <= i <= high for i in value):
            return tuple(value)
        raise bad(name, f"a list of at most {most} integers from {low} to {high}")

    huge = 1 << 63
    known = f"only version {VERSION} is read"
    if values.get("v") != VERSION or type(values["v"]) is not int:
        if "v" not in values:
            raise ValueError('"v" (its version) is missing')
        if type(values["v"]) is int and values["v"] == 1:
            raise ValueError(f"version 1 of the line is from an earlier torchtally and has another digest, {known}")
        raise ValueError(f"version {_show(values['v'])} of the line is not known here, {known}")
    plan = values.get("plan")
    if not isinstance(plan, dict) or not all(type(e) is int and 0 <= e <= _MANY for e in plan.values()):
        raise bad("plan", f"an object that gives each phase its number of epochs, 0 to {_MANY}")
    if not all(phase.strip() and phase.isprintable() for phase in plan):
        raise bad("plan", "an object whose names are printable text")
    phase = choice("phase", tuple(plan))
    world = integer("world", 1, _MANY)
    if values.get("rank") != "all":
        try:
            integer("rank", 0, world - 1)
        except ValueError as error:
            raise ValueError(f'{error} (world is {world}), or "all"' if "rank" in values else str(error)) from None
    n = integer("n", 1, digest.P - 1)
    try:
        words = digest.parse(text("digest"))
        if str(words) != values["digest"]:  # the bits that base64 has to spare
            raise ValueError
    except ValueError:
        raise bad("digest", f"{digest.WORDS} numbers below 2**61 - 1 in base64 for URLs") from None
    consumed = integer("consumed", 0, huge)
    if consumed < words.words[0]:
        raise bad("consumed", f"no less than the {words.words[0]} samples that its digest counts")
    lost, doubled = count("lost", "doubled"), count("doubled", "lost")
    return Tally(
        run=text("run"),
        attempt=integer("attempt", 0, huge),
        pod=text("pod"),
        task=text("task"),
        phase=phase,
        epoch=integer("epoch", 1, plan[phase]),
        plan=plan,
        rank=values["rank"],
        world=world,
        n=n,
        start=integer("start", 0, n - 1),
        batch=integer("batch", 1, huge),
        seed=integer("seed", 0, (1 << 64) - 1),
        contract=choice("contract", ("exact", "padded", "drop_last")),
        order=choice("order", ("feistel-1", "sequential")),
        data=text("data"),
        expected=integer("expected", 0, huge),
        consumed=consumed,
        digest=words,
        lost=lost,
        doubled=doubled,
        lost_indices=indices("lost_indices", lost, 0, n - 1),
        doubled_indices=indices("doubled_indices", doubled, -huge, huge - 1),
    )


def _show(value: object) -> str:
    return _short(json.dumps(value), 60)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."
