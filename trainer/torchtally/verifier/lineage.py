"""Which of a run's lines are of the samples that the final weights have seen.

A later attempt resumes from a checkpoint. If it does a phase again, all that earlier attempts did from there on is
discarded. An attempt that kept no checkpoint leaves its number to the next, and nothing descends from it.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise

from torchtally.proof.line import Attempt, TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.verifier import growth
from torchtally.verifier.lines import Lines
from torchtally.verifier.phrasing import attempt_names
from torchtally.verifier.problem import Block, Problem


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


def of(groups: list[Lines], last: RunSummary | None) -> list[Lines]:
    """The lines that count, in the order of the run."""
    chain = _chain({each.first.attempt_began for each in groups}, last)
    phases = {phase: place for place, phase in enumerate(groups[0].first.plan)} if groups else {}

    def story(each: Lines) -> tuple[float, ...]:
        first = each.first
        return first.epoch, phases.get(first.phase, len(phases)), -first.attempt, each.place

    lineage: list[Lines] = []
    attempt = 0
    own = sorted((each for each in groups if each.first.attempt_began in chain), key=story)
    for _, block in groupby(own, key=lambda each: each.first.block):
        newest, *others = block
        if newest.first.attempt >= attempt:
            attempt = newest.first.attempt
            lineage += [each for each in (newest, *others) if each.first.attempt == attempt]
    return lineage


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
