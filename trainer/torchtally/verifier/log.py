"""Tally lines and the last lines of runs out of logs: found anywhere in a line of a log, and each value checked."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, TextIO

from torchtally.observed.log import Lines as Observed
from torchtally.proof import line as tally_line
from torchtally.proof import run_summary
from torchtally.proof.line import NAMES, PREFIX, Attempt, TallyLine
from torchtally.proof.rules import short
from torchtally.proof.run_summary import PhaseSummary, RunSummary
from torchtally.proof.shard_sizes import ShardSizes, by_fingerprint
from torchtally.verifier import growth
from torchtally.verifier.container_logs import Unwrapping
from torchtally.verifier.line_groups import Lines
from torchtally.verifier.log_events import Heard
from torchtally.verifier.outcome import Unsuccessful
from torchtally.verifier.phrasing import differing

# A prefix counts where a line could have begun: before JSON, or cut off right behind itself.
_START = re.compile(re.escape(PREFIX) + r"(?=\{|\s*$)")
_LINEAGE = re.compile(r'"run":\s*"([^"]+)",\s*"attempt":\s*(\d{1,9})(?=,)(?:,\s*"began":\s*(\d{1,15})(?=,))?')
_DECODER = json.JSONDecoder()
_PLACE = attrgetter("run", "attempt", "began", "block")
_OF_AN_ATTEMPT = ("worlds", "discarded")
_LONGEST = 1 << 20  # characters of one line held at a time; a tally line has under 1 KB


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a part of a log is no evidence; with its run, attempt, and phase and epoch, as far as the text names them."""

    text: str
    run: str | None = None
    attempt: int | None = None
    began: int | None = None
    block: tuple[str, int] | None = None
    no_log: bool = False  # a pod has none, so nothing was read
    unread: bool = False  # a line that cannot be read contradicts nothing

    def is_of(self, run: str, newest: Attempt) -> bool:
        """Whether it may be about a run, and not about an attempt before the newest."""
        if self.run not in (None, run) or self.attempt is None:
            return self.run in (None, run)
        return (self.attempt, newest[1] if self.began is None else self.began) >= newest

    def is_about(self, lines: list[TallyLine]) -> bool:
        """Whether it doubts one of these lines."""
        place = self.run, self.attempt, self.began, self.block
        return self.block is not None and any(place == each for each in map(_PLACE, lines))


@dataclass
class Log:
    """Everything read so far. Holds tally lines only, so that a log of any length fits."""

    blocks: dict[tuple[Any, ...], list[Lines]] = field(default_factory=lambda: defaultdict(list))
    lasts: dict[str, list[RunSummary]] = field(
        default_factory=lambda: defaultdict(list)
    )  # of runs, as often as printed
    begins: dict[str, int] = field(default_factory=dict)  # of runs, 0 where it is not known; in order of appearance
    heard: Heard = field(default_factory=Heard)  # by their events
    complaints: list[Complaint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)  # of programs that keep no account
    told: list[ShardSizes] = field(default_factory=list)  # with --sizes
    job: Unsuccessful | None = None  # whose logs these are

    def read(self, source: str, stream: TextIO) -> None:
        """Add the lines of a stream, whose name is for complaints."""
        self.sources.append(source)
        unwrapping, number = Unwrapping(PREFIX.rstrip(), _LONGEST), 1
        while text := stream.readline(_LONGEST):
            for line in unwrapping.lines(text):
                self.add(line, f"{source}:{number}")
            number += text.endswith("\n")
        for line in unwrapping.rest():
            self.add(line, f"{source}:{number}")
        self.heard.end_of(source)

    def tell(self, sizes: Any) -> None:
        """Add the sizes of a dataset's shard files, which orders name by their fingerprint. Raises ValueError."""
        self.told.append(ShardSizes.of(sizes))

    def add(self, text: str, where: str) -> None:
        """Add a line of a log, which is at this place."""
        if self.observed.add(text, where):
            return
        self.heard.add(text, where)
        for found in _found_in(text):
            if isinstance(found, TallyLine):
                self.add_tally(found, where)
                continue
            self._begin(found.run, found.began)
            if isinstance(found, RunSummary):
                self.add_summary(found, where)
            else:
                self.complaints.append(replace(found, text=f"{where}: {found.text}"))

    def _begin(self, run: str | None, began: int | None) -> None:
        if run:
            self.begins[run] = min(filter(None, (self.begins.get(run), began)), default=0)

    def add_tally(self, line: TallyLine, where: str) -> None:
        """Add a tally line."""
        block = self.blocks[line.run, line.attempt, line.began, line.phase, line.epoch]
        for twin in filter(None, [each.line(line.rank) for each in block]):
            if twin == line:
                return
            who = "all ranks" if line.rank == "all" else f"rank {line.rank}"
            which = f"{line.phase} epoch {line.epoch} of {who}"
            text = f"{where}: {which} is printed twice and differs: {'; '.join(_differences(twin, line))}"
            self.complaints.append(Complaint(text, line.run, line.attempt, line.began, line.block))
            return
        shared = line.shared
        for each in block:
            if each.shared == shared:
                each.add(line)
                return
        self._begin(line.run, line.began)
        block.append(Lines(line))

    def add_summary(self, summary: RunSummary, where: str) -> None:
        """Add a last line of a run."""
        twins = self.lasts[summary.run]
        alike = [twin for twin in twins if not (growth.went_on(twin, summary) or growth.went_on(summary, twin))]
        differ = ("; ".join(_summary_differences(twin, summary)) for twin in alike)
        if differences := next(filter(None, differ), ""):
            text = f"{where}: the last line of run {summary.run} is printed twice and differs: {differences}"
            self.complaints.append(Complaint(text, summary.run))  # of no attempt: there is but one end
        if summary not in twins:
            twins.append(summary)

    @property
    def remarks(self) -> list[str]:
        """The notes, also of logs that begin in the middle."""
        return [*self.notes, *self.heard.notes]

    @property
    def groups(self) -> list[Lines]:
        """All lines."""
        return [*chain(*self.blocks.values())]

    @property
    def sizes(self) -> dict[str, ShardSizes]:
        """All sizes of shard files that are known, by their fingerprint."""
        of_phases = (phase.sizes for last in chain(*self.lasts.values()) for phase in last.phases.values())
        return by_fingerprint(chain(self.told, (line.sizes for each in self.groups for line in each.others), of_phases))

    @property
    def runs(self) -> list[str]:
        """By the time of their begin, and then by appearance."""
        begins = self.begins | {run: began for run, (_, began) in self.heard.started.items() if run not in self.begins}
        return sorted(begins, key=begins.__getitem__)


def is_whole(text: str) -> bool:
    """Whether a text is a line that can be read."""
    return bool(found := [*_found_in(text)]) and not any(isinstance(each, Complaint) for each in found)


def _differences(one: TallyLine, other: TallyLine) -> Iterator[str]:
    for name in NAMES:
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            words = differing(one.consumed_digest, other.consumed_digest)
            yield f"digest in {words}" if name == "digest" else f"{name} {a} and {b}"


def _summary_differences(one: RunSummary, other: RunSummary) -> Iterator[str]:
    """Fields of the same run in which only one of two last lines can be right; the pod and the attempt may differ.

    A complete run can be started again from a checkpoint before its end: other ranks then make that end once more.
    """
    again = _OF_AN_ATTEMPT if one.attempt != other.attempt else ()
    for name in ("task", "plan", "seed", "stopped", "model", *(each for each in _OF_AN_ATTEMPT if each not in again)):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            yield f"{name} {json.dumps(a)} and {json.dumps(b)}"
    if one.phases.keys() != other.phases.keys():
        yield f"phases {', '.join(one.phases)} and {', '.join(other.phases)}"
    for phase, own in one.phases.items():
        if phase in other.phases:
            yield from _phase_differences(phase, own, other.phases[phase], again)


def _phase_differences(phase: str, one: PhaseSummary, other: PhaseSummary, again: tuple[str, ...]) -> Iterator[str]:
    ours, theirs = one.values(), other.values()
    for name in [each for each in dict.fromkeys([*ours, *theirs]) if each not in again]:
        a, b = ours.get(name), theirs.get(name)
        if a != b and name == "digest":
            yield f"digest of {phase} in {differing(one.consumed_digest, other.consumed_digest)}"
        elif a != b:
            yield f"{name} of {phase} {a} and {b}"


def _found_in(text: str) -> Iterator[TallyLine | RunSummary | Complaint]:
    """Each line that starts in `text`, or a complaint about it."""
    at = 0
    while start := _START.search(text, at):
        at, other_version = start.end(), False
        if line := tally_line.read(text[at:]):
            yield line
            return
        try:
            values, at = _DECODER.raw_decode(text, at)
            other_version = True
            tally_line.check_version(values)
            other_version = False
            yield RunSummary.parse(values) if run_summary.is_summary(values) else TallyLine.parse(values)
        except json.JSONDecodeError as error:
            cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
            how = "cut off" if cut else "mixed up with other output"
            if text.startswith('{\\"', start.end()):
                how = "in a JSON string that has no end, so that it cannot be read"
            shown = re.sub(r"[^ -~]", "?", text[start.start() :].rstrip())  # it goes to a terminal
            sentence = f"a tally line is {how}: {short(shown, 100)}"
            yield Complaint(sentence, *_lineage(text, start.end()), unread=True)
        except (ValueError, RecursionError) as error:  # numbers or nesting beyond what Python's parser takes, too
            lineage = _lineage(text, start.end())
            yield Complaint(f"bad tally line: {error}", *lineage, unread=other_version)


def _lineage(text: str, at: int) -> tuple[str | None, int | None, int | None]:
    """Run, attempt and its begin, of the line that begins at `at`, as far as the text has them."""
    following = text.find(PREFIX, at)
    found = _LINEAGE.search(text, at, following if following >= 0 else len(text))
    if not found:
        return None, None, None
    return found[1], int(found[2]), int(found[3]) if found[3] else None
