"""The last line of a run, against its own fields and against the run's other lines."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from torchtally.proof import digest, drop_counts
from torchtally.proof.line import TallyLine
from torchtally.proof.local_order import UnknownSizes
from torchtally.proof.order import parse, sizes_of
from torchtally.proof.run_summary import RunSummary
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.verifier.line_groups import Lines, blocks_of, ranks_of
from torchtally.verifier.phrasing import counted, differing, not_checked, numbers, who
from torchtally.verifier.problem import Problem

_OF_RUN, _OF_PHASE, _OF_EPOCH = ("task", "plan", "seed"), ("n", "contract", "order", "data"), ("start", "world", "end")


def faults(last: RunSummary) -> Iterator[Problem]:
    """Contradictions within the line. Without any, it proves the contracts of all phases and epochs on its own."""
    for phase, stated in last.phases.items():
        consumed, what = last.samples(phase), _described(last, phase)
        yield from _faults_of_dropped(last, phase)
        if stated.accounted != consumed:
            more = f" and dropped {stated.dropped}" if stated.dropped else ""
            text = f"the last line reports consumed {stated.consumed}{more}, but {what} make {consumed}"
            yield Problem(text, phase)
            if stated.end:  # garbled, perhaps: the digest takes its time then
                continue
        try:
            expected = last.expected(phase)[1]
        except UnknownSizes as unknown:
            yield Problem(f"the last line: {not_checked(unknown)}", phase, missing=True)
            continue
        if names := differing(stated.accounted_digest, expected):
            yield Problem(f"the last line's digest is not that of {what}: it differs in {names}", phase)


def _faults_of_dropped(last: RunSummary, phase: str) -> Iterator[Problem]:
    stated, epochs = last.phases[phase], last.epochs(phase)
    if (stated.dropped is None) != (stated.dropped_digest is None):
        yield Problem("the last line must have both dropped and dropped_digest, or none of them", phase)
    runs = stated.dropped_in
    if runs is None:
        if epochs > 1:  # the folded digest does not contain the sum of their numbers
            return
        runs = ((1, stated.dropped or 0),)
    elif drop_counts.epochs(runs) != epochs:
        yield Problem(
            f"the last line reports dropped_in for {drop_counts.epochs(runs)} epochs, but it covers {epochs}", phase
        )
    if (total := drop_counts.total(runs)) != (stated.dropped or 0):
        yield Problem(f"the last line reports dropped {stated.dropped or 0}, but dropped_in adds up to {total}", phase)
    if stated.of_dropped.words[0] != drop_counts.folded(runs, last.run):
        names = "dropped" if stated.dropped_in is None else "dropped_in"
        yield Problem(f"the last line reports {names} {_shown(runs)}, and its dropped_digest another", phase)


def _shown(runs: drop_counts.Runs) -> str:
    return str(runs[0][1]) if len(runs) == 1 and runs[0][0] == 1 else json.dumps(runs)


def with_sizes(last: RunSummary, sizes: Mapping[str, ShardSizes]) -> RunSummary:
    """The line with the sizes that the orders of its phases name, as far as they are known by their fingerprint."""
    phases = dict(last.phases)
    for name, phase in last.phases.items():
        named = sizes_of(parse(phase.order) or "sequential")
        known = sizes.get(named.fingerprint) if named else None
        if known and known.total == phase.n:
            phases[name] = replace(phase, sizes=known)
    return replace(last, phases=phases)


def _described(last: RunSummary, phase: str) -> str:
    epochs, stated = last.epochs(phase), last.phases[phase]
    which = numbers("epoch", range(1, epochs + 1)) if epochs else "0 epochs"
    if stated.contract == "as_drawn":
        return f"the draws of {which}"
    end = f", the last one before position {stated.end[1]}," if stated.end and stated.end[1] else ""
    return f"{which}{end} of N {stated.n} under {stated.contract}"


def contradictions(last: RunSummary, groups: list[Lines]) -> Iterator[Problem]:
    """Contradictions with other lines; of a phase whose lines are complete, with their sum, too."""
    camps: dict[tuple[str, str, str, str], list[Lines]] = defaultdict(list)
    for each in groups:
        for phase, name, stated in _facts(last, each.first):
            found = getattr(each.first, name)
            if found != stated:
                camps[phase, name, json.dumps(stated, sort_keys=True), json.dumps(found, sort_keys=True)].append(each)
    for (phase, name, stated, found), camp in camps.items():
        text = f"the last line reports {name} {stated}, but {found} is in the lines of {_whose(camp)}"
        yield Problem(text, phase, blocks_of(camp))
    for phase in dict.fromkeys(each.first.phase for each in groups):
        if late := [each for each in groups if each.first.phase == phase and each.first.epoch > last.epochs(phase)]:
            text = (
                f"the last line reports {counted(last.epochs(phase), 'epoch')}, but there are lines of {_whose(late)}"
            )
            yield Problem(text, phase, blocks_of(late))
    for phase in last.phases:
        lines = [line for each in groups if each.first.phase == phase and (line := each.line("all"))]
        if {line.epoch for line in lines} == {*range(1, last.epochs(phase) + 1)}:
            yield from _sum_faults(last, phase, lines)


def _whose(groups: list[Lines]) -> str:
    return f"{who(ranks_of(groups))} in {numbers('epoch', {each.first.epoch for each in groups})}"


def _facts(last: RunSummary, line: TallyLine) -> Iterator[tuple[str, str, Any]]:
    """Phase, name and value of the last line's facts about a line's run and epoch."""
    yield from (("", name, getattr(last, name)) for name in _OF_RUN)
    if line.phase in last.phases:
        stated = last.phases[line.phase]
        yield from ((line.phase, name, getattr(stated, name)) for name in _OF_PHASE)
    if line.epoch <= last.epochs(line.phase):
        dealt = (*last.dealt(line.phase, line.epoch), last.end(line.phase, line.epoch))
        yield from ((line.phase, name, value) for name, value in zip(_OF_EPOCH, dealt, strict=True))


def _sum_faults(last: RunSummary, phase: str, together: list[TallyLine]) -> Iterator[Problem]:
    stated, of = last.phases[phase], "the lines of all ranks together"
    if stated.consumed != (consumed := sum(line.consumed for line in together)):
        yield Problem(f"the last line reports consumed {stated.consumed}, but {of} add up to {consumed}", phase)
    if (stated.dropped or 0) != (sum_ := sum(line.dropped or 0 for line in together)):
        yield Problem(f"the last line reports dropped {stated.dropped or 0}, but {of} add up to {sum_}", phase)
    folded = digest.fold(((line.epoch, line.of_dropped) for line in together), last.run)
    if names := differing(stated.of_dropped, folded):
        yield Problem(f"the last line's dropped_digest is not the sum of {of}: it differs in {names}", phase)
    folded = digest.fold(((line.epoch, line.consumed_digest) for line in together), last.run)
    if names := differing(stated.consumed_digest, folded):
        yield Problem(f"the last line's digest is not the sum of {of}: it differs in {names}", phase)
