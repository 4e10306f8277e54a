"""The verdict on everything that was observed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torchtally.observed import across_passes, data, evaluation_pass, stream_pass, training_pass
from torchtally.observed.data import Data
from torchtally.observed.finding import Finding, Sign, note, numbers, ranks, right
from torchtally.observed.line import Handed, Rest
from torchtally.observed.log import Lines as Lines
from torchtally.observed.matching import Attempt, Passes, attempts
from torchtally.observed.training_pass import Counted

_UNSEEN = "whether the ranks have the same data was not seen"


class Outcome(StrEnum):
    """From the best to the worst."""

    OBSERVED = "observed"  # no fault was seen
    INCOMPLETE = "incomplete"  # no fault was seen, and lines are missing
    FAULTY = "faulty"


@dataclass(frozen=True)
class Pass:
    """One pass of a loader on all ranks."""

    number: int
    lines: dict[int, Handed]
    counted: Counted


@dataclass(frozen=True)
class Observed:
    """A loader in one attempt: its passes, and what they say together."""

    attempt: int
    loader: str
    trains: bool
    dataset: str
    length: int | None
    passes: list[Pass]
    findings: list[Finding]  # of several passes

    @property
    def phase(self) -> str:
        return "train" if self.trains else "evaluate"

    @property
    def all_findings(self) -> list[tuple[Finding, list[int]]]:
        """Each finding once, with the numbers of the passes that it is about, from 1; none for all together."""
        found: dict[tuple[Sign, str], tuple[Finding, list[int]]] = {}
        for each in self.passes:
            for finding in each.counted.findings:
                found.setdefault((finding.sign, finding.about), (finding, []))[1].append(each.number + 1)
        return [*found.values(), *((finding, []) for finding in self.findings)]


@dataclass
class Observation:
    """What was observed of a job, by all lines of its ranks."""

    world: int
    attempts: int
    loaders: list[Observed]
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # evidence that is missing
    unseen: bool = False  # a rank trained, and used no loader
    unexpected: list[str] = field(default_factory=list)  # what contradicts the user's own expectation

    @property
    def faults(self) -> list[str]:
        return [*(text for loader in self.loaders for text in _texts(loader, Sign.FAULT)), *self.unexpected]

    @property
    def remarks(self) -> list[str]:
        """Notes on loaders."""
        return [text for loader in self.loaders for text in _texts(loader, Sign.NOTE)]

    @property
    def outcome(self) -> Outcome:
        if self.faults:
            return Outcome.FAULTY
        return Outcome.INCOMPLETE if self.missing else Outcome.OBSERVED


def _texts(loader: Observed, sign: Sign) -> Iterator[str]:
    for finding, passes in loader.all_findings:
        if finding.sign is sign:
            every = not passes or len(passes) == len(loader.passes)
            where = "" if every else f", pass{'es' * (len(passes) > 1)} {numbers(passes)}"
            yield f"{loader.loader}{where}: {finding.text}"


def of(texts: Iterable[str]) -> Observation | None:
    """Judge the observed lines among these. Returns None if there is none."""
    lines = Lines()
    for text in texts:
        lines.add(text)
    return judge(lines)


def judge(lines: Lines) -> Observation | None:
    """Judge all lines. Returns None if there is none."""
    if not lines:
        return None
    found = attempts(lines.handed.values())
    loaders = [each for number, attempt in enumerate(found) for each in _loaders(attempt, number, found)]
    world = max([attempt.world for attempt in found] + [each.process.world for each in lines.rest], default=1)
    observation = Observation(world, max(1, len(found)), loaders)
    observation.notes += _rest(lines.rest)
    observation.missing += lines.unread
    unseen = {each.process.rank for each in lines.rest if each.unseen}
    observation.unseen = bool(unseen)
    for number, attempt in enumerate(found):
        missing = [*_missing(attempt, number, len(found), unseen)]
        if number < len(found) - 1:  # it may have been killed
            observation.notes += missing
        else:
            observation.missing += [*missing, *_open(attempt)]
        observation.notes += _separate(attempt)
    return observation


def _rest(rest: list[Rest]) -> Iterator[str]:
    for text in dict.fromkeys(each.text for each in rest if each.off):
        own = sorted({each.process.rank for each in rest if each.off and each.text == text})
        yield f"nothing more is observed on {ranks(own)}, as the observer has failed ({text}); the program continued"
    unseen = sorted({each.process.rank for each in rest if each.unseen})
    if unseen:
        yield (
            f"an optimizer stepped on {ranks(unseen)}, and used no batch of a DataLoader of PyTorch there: how the "
            "training's samples are divided could not be observed"
        )
    for text in dict.fromkeys(each.text for each in rest if not each.off and not each.unseen):
        yield f"{text} are summed up"


def _missing(attempt: Attempt, number: int, of: int, unseen: set[int]) -> Iterator[str]:
    absent = sorted(set(range(attempt.world)) - set(attempt.ranks) - unseen)
    where = f"attempt {number}: " if of > 1 else ""
    trained = any(line.steps for line in attempt.lines)
    dispatched = any(line.loader.type == "DataLoaderDispatcher" for line in attempt.lines)
    if absent and trained and not dispatched:
        yield f"{where}{ranks(absent)} of {attempt.world} {'has' if len(absent) == 1 else 'have'} no line"


def _open(attempt: Attempt) -> Iterator[str]:
    """Passes whose end no line tells, by their loader."""
    for passes in attempt.loaders:
        still = sorted({line.rank for line in passes.lines if line.end == "open"})
        if still:
            yield f"{_name(passes)}: a pass is still open on {ranks(still)}: the program runs, or was killed"


def _separate(attempt: Attempt) -> Iterator[str]:
    """Processes that all take themselves for the only rank."""
    processes = {line.process.key for line in attempt.lines if line.process.world == 1 and line.steps}
    if len(processes) > 1:
        yield (
            f"{len(processes)} processes train, each as rank 0 of 1: they share no process group, and nothing divides "
            "the samples between them"
        )


def _loaders(attempt: Attempt, number: int, every: list[Attempt]) -> Iterator[Observed]:
    trains = [each for each in attempt.loaders if _trains(each, attempt)]
    grouped = all(line.process.grouped for line in attempt.lines)
    leaks = [*across_passes.leaks(attempt, trains)] if grouped else []  # else ranks may train models of their own
    for passes in attempt.loaders:
        same = data.of(_of_base(attempt, passes))
        stable = stream_pass.are_stable(passes.numbers.values())
        is_training = any(passes is each for each in trains)
        elsewhere = _elsewhere(attempt, passes)
        judged = [
            Pass(at, own, _judged(own, same, stable, is_training, attempt.world, elsewhere))
            for at, own in sorted(passes.numbers.items())
        ]
        if is_training and (doubt := across_passes.doubt(passes, trains)):
            judged = [replace(each, counted=_in_doubt(each.counted, doubt)) for each in judged]
        if is_training and (lost := across_passes.never_reached(passes, attempt.world, same)):
            judged = [replace(each, counted=replace(each.counted, lost=lost)) for each in judged]
        together = [finding for own, finding in leaks if own is passes]
        if is_training:
            together += across_passes.of_epochs(passes, attempt.world, same)
            together += _uneven_passes(passes, attempt)
            if number:
                together += across_passes.of_restart(every[number - 1], Attempt(attempt.lines, [passes]), number)
        yield Observed(
            number, _name(passes), is_training, passes.loader.dataset, passes.loader.length, judged, together
        )


def _name(passes: Passes) -> str:
    """Place, dataset, and its length; of a Subset the dataset below."""
    loader, base = passes.loader, passes.lines[0].base
    dataset = f"{loader.dataset} of {base.type}" if base and base.type != loader.dataset else loader.dataset
    many = "" if loader.length is None else f", {loader.length} samples"
    return f"{loader.place or 'a loader'} ({dataset}{many})"


def _trains(passes: Passes, attempt: Attempt) -> bool:
    """Whether an optimizer stepped on most of its passes; where nobody saw a step, whether gradients were on."""
    lines = passes.lines
    if any(line.steps for line in attempt.lines):
        return 2 * sum(line.trains for line in lines) >= len(lines)
    if any(line.steps is None for line in lines):  # this PyTorch does not tell of steps
        return 2 * sum(line.gradients for line in lines) > len(lines)
    return False


def _of_base(attempt: Attempt, passes: Passes) -> list[Handed]:
    """All lines of the bases of a loader: other loaders may have read the same samples again."""
    bases = {line.base for line in passes.lines}
    return [line for line in attempt.lines if line.base in bases]


def _judged(
    lines: dict[int, Handed], same: Data, stable: bool, is_training: bool, world: int, elsewhere: int
) -> Counted:
    if all(line.base is None for line in lines.values()):
        return stream_pass.judge(lines, is_training, world, stable)
    trained = training_pass.judge(lines, same, world, elsewhere) if is_training else None
    judged = trained or evaluation_pass.judge(lines, same, world)
    return _by_index(judged) if same is Data.ASSUMED and len(lines) > 1 else judged


def _by_index(counted: Counted) -> Counted:
    """What is right or wrong, in words that leave open whether an index is the same sample on all ranks."""
    findings = [
        right(f"{each.text.replace('sample', 'index')} ({_UNSEEN})") if each.sign is Sign.RIGHT else each
        for each in counted.findings
    ]
    return _in_doubt(replace(counted, findings=tuple(findings)), _UNSEEN)


def _in_doubt(counted: Counted, why: str) -> Counted:
    """With notes in place of faults."""
    findings = (
        note(each.about, f"{each.text} ({why})") if each.sign is Sign.FAULT else each for each in counted.findings
    )
    return replace(counted, findings=tuple(findings))


def _elsewhere(attempt: Attempt, passes: Passes) -> int:
    """The bits of samples that other loaders of the same base hand out or, of a Subset, hold."""
    bases = {line.base for line in passes.lines}
    others = (line for each in attempt.loaders if each is not passes for line in each.lines if line.base in bases)
    bits = 0
    for line in others:
        bits |= (line.handed.bits if line.handed else 0) | (line.holds.bits if line.holds else 0)
    return bits


def _uneven_passes(passes: Passes, attempt: Attempt) -> Iterator[Finding]:
    counts = {rank: sum(rank in own for own in passes.numbers.values()) for rank in attempt.ranks}
    if len(set(counts.values())) > 1 and all(counts.values()):
        most, least = max(counts.values()), min(counts.values())
        some = [rank for rank, count in counts.items() if count == most]
        yield note("uneven", f"{ranks(some)} made {most} passes, and the others down to {least}")
