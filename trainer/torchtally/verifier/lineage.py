"""Which of a run's lines are of the samples that the final weights have seen.

A later attempt resumes from a checkpoint. If it does a phase again, all that earlier attempts did from there on is
discarded. An attempt that kept no checkpoint leaves its number to the next, and nothing descends from it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from torchtally.proof.line import Attempt, TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.verifier import growth
from torchtally.verifier.line_groups import Lines, firsts
from torchtally.verifier.phrasing import attempt_names
from torchtally.verifier.problem import Block, Problem

Place = tuple[float, float]  # in the run's story: epoch, and number of the phase in the plan


def end(lasts: list[RunSummary], lines: list[TallyLine]) -> RunSummary | None:
    """The first of a run's last lines that no line comes after; if there is none, the latest.

    An attempt that finds the run complete prints the last line again.
    """
    ordered = sorted(lasts, key=lambda last: (last.attempt_began, last.pod))
    ordered = [last for last in ordered if not any(growth.went_on(last, other) for other in ordered)]
    attempts = {line.attempt_began for line in lines}
    for last in ordered:
        if not any(after(attempt, last) for attempt in attempts):
            return last
    return ordered[-1] if ordered else None


def after(attempt: Attempt, last: RunSummary) -> bool:
    """Whether an attempt came after that of the last line, which then says nothing of its weights."""
    number, began = attempt
    if number < last.attempt or attempt == last.attempt_began:
        return False
    # With a higher number, one that began earlier was given up: the last line's went back to an older checkpoint.
    return began > last.began or (number > last.attempt and 0 in (began, last.began))


def place(block: Block, phases: Sequence[str]) -> Place:
    """The place of an epoch of a phase, of which a plan has these."""
    phase, epoch = block
    return epoch, phases.index(phase) if phase in phases else len(phases)


def repeated(done: Iterable[tuple[Attempt, Place]]) -> dict[Attempt, Place]:
    """By attempt, from which place on later ones did the run again: what it did from there on is superseded.

    `done` has places that attempts have done.
    """
    begins: dict[Attempt, Place] = {}
    for attempt, at in done:
        begins[attempt] = min(at, begins.get(attempt, at))
    found: dict[Attempt, Place] = {}
    least: Place = (math.inf, 0)
    for attempt in sorted(begins, reverse=True):
        found[attempt] = least
        least = min(least, begins[attempt])
    return found


def of(groups: list[Lines], last: RunSummary | None, *, proven: bool) -> list[Lines]:
    """The lines that count, in the order of the run. The last line tells more of them if it is `proven`."""
    chain = _chain({each.first.attempt_began for each in groups}, last)
    phases = [*groups[0].first.plan] if groups else []
    own = [(each, place(each.first.block, phases)) for each in groups if each.first.attempt_began in chain]
    again = repeated((each.first.attempt_began, at) for each, at in own)
    own = [(each, at) for each, at in own if at < again[each.first.attempt_began]]
    found = [each for each, at in sorted(own, key=lambda each: (each[1], each[0].place))]
    if last and proven:
        counting = {line.block for line in firsts(found) if not _superseded(last, line)}
        found = [each for each in found if each.first.block in counting]  # of one attempt, all of a block or none
    return found


def superseded(groups: list[Lines], counting: list[Lines]) -> Iterator[str]:
    """A note on each attempt with lines that do not count."""
    attempts, counted = Counter[Attempt](), Counter[Attempt]()
    for counts, lines in ((attempts, groups), (counted, counting)):
        for each in lines:
            counts[each.first.attempt_began] += len(each)
    ordered = sorted(attempts)
    for attempt, name in zip(ordered, attempt_names(ordered), strict=True):
        if more := attempts[attempt] - counted[attempt]:
            yield f"{more} lines of {name} are superseded: a later attempt resumed before them"


def doubts(lines: list[TallyLine], last: RunSummary | None) -> Iterator[Problem]:
    """Attempts that leave open which weights came of the run."""
    attempts = {line.attempt_began for line in lines}
    if last:
        for late in sorted(attempt for attempt in attempts if after(attempt, last)):
            named, of_last = attempt_names([late, last.attempt_began])
            text = f"{named} has lines, and came after the last line, which is of {of_last}"
            yield Problem(text, "", _blocks(lines, late), missing=True)
        return
    # A clock was wrong, or the run went back to an older checkpoint: without a last line there is no telling.
    known = sorted(attempt for attempt in _chain(attempts, None) if attempt[1])
    for one, other in pairwise(known):
        if one[1] > other[1]:
            named, of_other = attempt_names([one, other])
            text = f"{named} began after {of_other}, and without the run's last line it is not known which came last"
            yield Problem(text, "", _blocks(lines, one), missing=True)


def _blocks(lines: list[TallyLine], attempt: Attempt) -> frozenset[Block]:
    return frozenset(line.block for line in lines if line.attempt_began == attempt)


def _chain(attempts: set[Attempt], last: RunSummary | None) -> set[Attempt]:
    """Of each number the attempt that began last: the newest attempt, and those that it can descend from."""
    if last:
        attempts = {each for each in attempts if each[0] < last.attempt or after(each, last)} | {last.attempt_began}
    return set(dict(sorted(attempts)).items())


def _superseded(last: RunSummary, line: TallyLine) -> bool:
    """Whether a later attempt did the line's epoch again: its samples were shared out differently at last.

    Or it stopped the run before the end of that epoch.
    """
    if line.attempt >= last.attempt or line.epoch > last.plan.get(line.phase, 0):
        return False
    if line.epoch > last.epochs(line.phase):
        return True
    dealt = (*last.dealt(line.phase, line.epoch), last.end(line.phase, line.epoch))
    return (line.start, line.world, line.end) != dealt
