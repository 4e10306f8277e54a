"""A run whose plan has grown: an earlier attempt planned fewer epochs, and a later one continued with more."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import attrgetter

from torchtally.proof.line import Attempt, TallyLine
from torchtally.proof.run_summary import RunSummary
from torchtally.verifier.line_groups import Lines
from torchtally.verifier.phrasing import attempt_names, counted

Plan = Mapping[str, int]
_OF_RUN, _OF_PHASE = attrgetter("task", "seed"), attrgetter("n", "contract", "order", "data")  # which never change


def grows(earlier: Plan, later: Plan) -> bool:
    """Whether a plan has the same phases, none with fewer epochs, and one with more."""
    return [*earlier] == [*later] and earlier != later and all(earlier[phase] <= later[phase] for phase in later)


def went_on(first: RunSummary, second: RunSummary) -> bool:
    """Whether the second of two last lines is of a later attempt at the run, continued from the end of the first."""
    later = first.attempt < second.attempt and (first.began <= second.began or not second.began)
    if not later or first.stopped or not grows(first.plan, second.plan):
        return False
    return _OF_RUN(first) == _OF_RUN(second) and all(
        phase in second.phases
        and _OF_PHASE(own) == _OF_PHASE(second.phases[phase])
        and first.epochs(phase) <= second.epochs(phase) - (second.end(phase, second.epochs(phase)) is not None)
        and (first.epochs(phase) == second.epochs(phase) or own.accounted < second.phases[phase].accounted)
        for phase, own in first.phases.items()
    )


def as_planned_at_last(lines: list[Lines], last: RunSummary | None) -> tuple[list[Lines], list[str]]:
    """The lines and notes. Lines of earlier attempts have the newest attempt's plan, if their own has grown to it.

    The line of an epoch that ends early keeps its plan, because a longer plan would not end the epoch there.
    """
    firsts = [each.first for each in lines]
    newest = max((first.attempt_began for first in firsts), default=None)
    plan = last.plan if last else next((first.plan for first in firsts if first.attempt_began == newest), None)
    if plan is None:
        return lines, []
    attempt = last.attempt if last else max(first.attempt for first in firsts)
    grown = _grown([first for first in firsts if first.attempt < attempt], plan)
    found = [
        each.with_plan(plan) if each.first.attempt_began in grown and each.first.end is None else each for each in lines
    ]
    return found, list(_notes(grown, plan))


def _grown(lines: list[TallyLine], plan: Plan) -> dict[Attempt, Plan]:
    """The attempts, and their plans, whose plan has grown to that of the next one, and at last to `plan`."""
    plans: dict[Attempt, list[Plan]] = defaultdict(list)
    for line in lines:
        if line.plan not in plans[line.attempt_began]:
            plans[line.attempt_began].append(line.plan)
    grown: dict[Attempt, Plan] = {}
    following = plan
    for attempt, (own, *others) in sorted(plans.items(), reverse=True):
        if others or not (own == following or grows(own, following)):
            break
        following = own
        if grows(own, plan):
            grown[attempt] = own
    return grown


def _notes(grown: Mapping[Attempt, Plan], plan: Plan) -> Iterator[str]:
    ordered = sorted(grown)
    for attempt, name in zip(ordered, attempt_names(ordered), strict=True):
        longer = [phase for phase in plan if grown[attempt][phase] < plan[phase]]
        changes = [f"{counted(grown[attempt][phase], 'epoch')} of {phase} (now {plan[phase]})" for phase in longer]
        yield f"{name} planned {' and '.join(changes)}"
