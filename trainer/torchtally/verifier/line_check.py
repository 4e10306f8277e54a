"""The lines of one run, held against their own fields, against each other, and against the plan."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torchtally.proof.digest import OF_POSITIONS, Digest
from torchtally.proof.line import NAMED, Rank, TallyLine
from torchtally.proof.local_order import UnknownSizes
from torchtally.proof.modular import P
from torchtally.proof.order import DRAWN
from torchtally.proof.run_summary import RunSummary
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.verifier import digest_check, expected
from torchtally.verifier.line_groups import Lines, blocks_of, ranks_of, together
from torchtally.verifier.phrasing import differing, not_checked, numbers, who
from torchtally.verifier.problem import Block, Problem


def compare(
    lines: list[Lines], last: RunSummary | None, sizes: Mapping[str, ShardSizes]
) -> tuple[list[Problem], list[Problem]]:
    """The problems of the lines, and the lines that are missing. Without `last`, there is at least one line.

    `sizes` has those of shard files, by their fingerprint.
    """
    blocks: dict[Block, list[Lines]] = defaultdict(list)
    for each in lines:
        blocks[each.first.block].append(each)

    problems = list(_disagreements(lines, "", ("task", "plan")))
    unsettled: list[Problem] = []
    for attempt in {each.first.attempt_began for each in lines}:  # the next may have another number of ranks
        own = [each for each in lines if each.first.attempt_began == attempt]
        unsettled += _disagreements(own, "", ("world",))
    problems += unsettled
    absent = [] if problems else _missing(blocks, last.plan if last else lines[0].first.plan, last)
    missing = [replace(problem, missing=True) for problem in absent]
    settled = not unsettled
    comparable: set[str] = set()
    for phase in dict.fromkeys(phase for phase, _ in blocks):
        own = [each for each in lines if each.first.phase == phase]
        found = list(_disagreements(own, phase, ("n", "seed", "contract", "order", "data")))
        problems += found
        if settled and not found:
            comparable.add(phase)

    for block, groups in blocks.items():
        where = f"{block[0]} epoch {block[1]}"
        everything = together(groups)
        texts: list[str] = []
        unknown: list[str] = []  # what nothing contradicts, and nothing proves
        for line in [*([everything] if everything else ()), *expected.doubtful(groups)]:
            texts += _faults(line)
            if block[0] in comparable:
                sized = expected.with_sizes(line, sizes)
                try:
                    texts += [*digest_check.faults(sized)]
                except UnknownSizes as error:
                    sentence = f"{who([line.rank])}: {not_checked(error)}"
                    (texts if expected.has_other_positions(sized) else unknown).append(sentence)
        differ = list(_disagreements(groups, where, ("start", "end", "batch")))  # in which epochs may differ
        problems += differ
        if not last:
            (texts if _goes_on(lines, groups) else unknown).extend(_early_ends(groups))
        if everything and block[0] in comparable and not differ and sum(map(len, groups)) == everything.world + 1:
            texts += _sum_faults(everything, groups)
        problems += [Problem(text, where, frozenset([block])) for text in texts]
        problems += [Problem(text, where, frozenset([block]), missing=True) for text in unknown]
    return problems, missing


def _disagreements(groups: list[Lines], where: str, names: Iterable[str]) -> Iterator[Problem]:
    epochs = {each.first.epoch for each in groups}
    for name in names:
        camps: dict[str, list[Lines]] = defaultdict(list)
        for each in groups:
            camps[json.dumps(getattr(each.first, name), sort_keys=True)].append(each)
        if len(camps) > 1:
            sides = []
            for value, camp in camps.items():
                when = {each.first.epoch for each in camp}
                in_epochs = f" in {numbers('epoch', when)}" if where and when != epochs else ""
                sides.append(f"{value} ({who(ranks_of(camp))}{in_epochs})")
            yield Problem(f"the lines disagree on {name}: {', '.join(sides)}", where, blocks_of(groups))


def _missing(blocks: dict[Block, list[Lines]], plan: Mapping[str, int], last: RunSummary | None) -> Iterator[Problem]:
    for phase, planned_count in plan.items():
        count = last.epochs(phase) if last else planned_count
        made = "planned" if count == planned_count else "made"  # of a run that has stopped
        seen = {epoch for name, epoch in blocks if name == phase}
        if count and not seen:
            yield Problem(f"no tally line of phase {phase} at all, {numbers('epoch', range(1, count + 1))} {made}")
        elif absent := set(range(1, count + 1)) - seen:
            yield Problem(f"no tally line of {numbers('epoch', absent)}, {count} {made}", phase)
    absent_ranks = {
        block: set[Rank]({*range(groups[0].first.world), "all"}).difference(ranks_of(groups))
        for block, groups in blocks.items()
    }
    nowhere = set[Rank]().union(*absent_ranks.values())
    for groups in blocks.values() if nowhere else ():
        nowhere.difference_update(ranks_of(groups))
    if nowhere:
        yield Problem(f"no tally line of {who(nowhere)} at all", "", frozenset(blocks))
    for block, ranks in absent_ranks.items():
        if some := ranks - nowhere:
            yield Problem(f"no tally line of {who(some)}", f"{block[0]} epoch {block[1]}", frozenset([block]))


def _faults(line: TallyLine) -> Iterator[str]:
    """Contradictions among the counts of one line."""
    name = who([line.rank])
    size = expected.size(line)
    if line.drawn_digest and line.expected != size:
        yield f"{name} expected {line.expected}, but its drawn_digest is of {size} samples"
    elif line.drawn_digest and line.rank == "all" and line.end not in (None, size):
        yield f"{name} expected {size}, but the epoch ends before position {line.end}"
    elif line.expected != size:
        start = f" from position {line.start} on" if line.start else ""
        under = f"under {line.contract}" if line.end is None else f"before position {line.end}"
        yield (
            f"{name} expected {line.expected}, but N {line.n} over world size {line.world}{start} {under} makes {size}"
        )
    for source, (weight, _, rows) in (line.mixture or {}).items():
        if rows != (plan := (line.rows_of_sources or {})[source][2]):
            yield f"{name} had {rows} rows of the source {source}, but its weight {weight} makes {plan}"
    if line.lost is None or line.duplicated is None:
        yield f"{name}: too many samples are lost or duplicated to count"
        return
    dropped = line.dropped or 0
    if line.consumed != (sum_ := line.expected - line.lost + line.duplicated - dropped):
        yield (
            f"{name} consumed {line.consumed}, but "
            f"expected {line.expected} - lost {line.lost} + duplicated {line.duplicated}"
            f"{f' - dropped {dropped}' if dropped else ''} = {sum_}"
        )
    if line.lost or line.duplicated:
        lost, duplicated = _named(line.lost, line.lost_indices), _named(line.duplicated, line.duplicated_indices)
        outside = f", {line.outside} of them outside of the dataset" if line.outside else ""
        yield f"{name}: {lost} lost, {duplicated} duplicated{outside}"


def _early_ends(groups: list[Lines]) -> Iterator[str]:
    """Ends of an epoch that is not the last one: what is behind them is lost if the run continued."""
    lines = [each.first for each in groups]
    for end, planned in {(line.end, line.plan[line.phase]) for line in lines if line.end is not None}:
        if lines[0].epoch < planned:
            yield (
                f"the epoch ends before position {end} of N {lines[0].n}, though {planned} epochs are planned: only "
                "the run's last line, which is missing, can say that the run was stopped there"
            )


def _goes_on(groups: list[Lines], block: list[Lines]) -> bool:
    """Whether an attempt that ended an epoch early has lines of later ones."""
    phase, epoch = block[0].first.block
    attempts = {each.first.attempt_began for each in block}
    lines = (each.first for each in groups)
    return any(line.phase == phase and line.epoch > epoch and line.attempt_began in attempts for line in lines)


def _sum_faults(together: TallyLine, groups: list[Lines]) -> Iterator[str]:
    plain = expected.sum_of_plain(groups)
    others = [line for each in groups for line in each.others if line.rank != "all"]
    before = f" and the {together.start} samples before" if together.start else ""
    sums = {"expected": "expected", "accounted": "consumed or dropped"}
    for (name, what), of_plain in zip(sums.items(), plain, strict=False):
        stated, sum_ = getattr(together, name), together.start + of_plain + sum(getattr(line, name) for line in others)
        if stated != sum_:
            what = what if together.dropped else what.removesuffix(" or dropped")
            yield f"all ranks together report {what} {stated}, but their lines{before} add up to {sum_}"
    stated, sum_ = together.dropped or 0, sum(line.dropped or 0 for line in others)
    # Nothing tells which rank has dropped what before a resume. An order that is drawn has no position for that.
    before_resume = together.expected if together.order == DRAWN else together.start
    if not sum_ <= stated <= sum_ + before_resume:
        yield f"all ranks together report dropped {stated}, but their lines{before} add up to {sum_}"
    of_dropped = sum((line.of_dropped for line in others), Digest())
    if stated == sum_ and (names := differing(together.of_dropped, of_dropped)):
        yield f"the dropped_digest of all ranks together is not the sum of their lines: it differs in {names}"
    digests = (line.accounted_digest for line in others)
    sum_of_digests = sum(digests, Digest(tuple(word % P for word in plain[2:]))) + expected.carried(together)
    if together.start:  # the indices of earlier samples have no closed form
        sum_of_digests = Digest((*sum_of_digests.of_positions, *together.accounted_digest.words[OF_POSITIONS:]))
    if names := differing(together.accounted_digest, sum_of_digests):
        yield f"the digest of all ranks together is not the sum of their lines{before}: it differs in {names}"
    for name in ("lost", "duplicated"):  # fewer are possible: one rank may consume what another lost
        stated, each = getattr(together, name), [getattr(line, name) for line in others]
        if stated is not None and None not in each and stated > sum(each):
            yield f"all ranks together report {name} {stated}, but their lines add up to only {sum(each)}"


def _named(count: int, indices: tuple[int, ...]) -> str:
    """`3 (17, 20, 21)`, or a note that there are too many to name."""
    if not count:
        return "0"
    if not indices:
        return f"{count} (none named)"
    names = ", ".join(map(str, indices))
    if len(indices) < min(count, NAMED):  # a line names each sample once
        names += ", some more than once"
    elif len(indices) < count:
        names += f" and {count - len(indices)} more, too many to name"
    return f"{count} ({names})"
