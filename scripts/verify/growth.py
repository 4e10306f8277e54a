"""A run whose plan has grown: an earlier attempt planned fewer epochs, and a later one has gone on to more."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchtally.proof.line import Attempt, TallyLine
from torchtally.proof.run_summary import RunSummary

from .phrasing import attempt_names


def grows(earlier: Mapping[str, int], later: Mapping[str, int]) -> bool:
    """Whether a plan has the same phases, none with fewer epochs, and one with more."""
    return [*earlier] == [*later] and earlier != later and all(earlier[phase] <= later[phase] for phase in later)


def went_on(first: RunSummary, second: RunSummary) -> bool:
    """Whether the second of two last lines is of a later attempt, which has gone on after the end of the first."""
    if first.attempt >= second.attempt or first.stopped or not grows(first.plan, second.plan):
        return False
    longer = [phase for phase in first.phases if first.plan[phase] < second.plan[phase]]
    return all(first.phases[phase].consumed < second.phases[phase].consumed for phase in longer)


def as_planned_at_last(lines: list[TallyLine], last: RunSummary | None) -> tuple[list[TallyLine], list[str]]:
    """The lines, those of earlier attempts with the plan of the newest attempt if theirs has grown to it; and notes.

    An epoch that ends early by its plan is left as it is, for a longer plan would not end it there.
    """
    newest = max((line.attempt_began for line in lines), default=None)
    plan = last.plan if last else next((line.plan for line in lines if line.attempt_began == newest), None)
    if plan is None:
        return lines, []
    attempt = last.attempt if last else max(line.attempt for line in lines)
    grown: dict[Attempt, Mapping[str, int]] = {}
    found = []
    for line in lines:
        if line.attempt < attempt and line.end is None and grows(line.plan, plan):
            grown[line.attempt_began] = line.plan
            line = replace(line, plan=plan)
        found.append(line)
    return found, list(_notes(grown, plan))


def _notes(grown: Mapping[Attempt, Mapping[str, int]], plan: Mapping[str, int]) -> Iterator[str]:
    ordered = sorted(grown)
    for attempt, name in zip(ordered, attempt_names(ordered), strict=True):
        longer = [phase for phase in plan if grown[attempt][phase] < plan[phase]]
        changes = [f"{grown[attempt][phase]} epochs of {phase}, which are {plan[phase]} now" for phase in longer]
        yield f"{name} planned {' and '.join(changes)}"
