"""One pass that does not train: a sample that counts twice, or not at all, makes a metric wrong."""

from collections.abc import Iterator

from torchtally.observed import causes, sets, uneven_pass
from torchtally.observed.causes import Lines
from torchtally.observed.data import Data
from torchtally.observed.finding import Finding, fault, note, right
from torchtally.observed.shares import Shares
from torchtally.observed.training_pass import Counted

_SOME = 0.02


def judge(lines: Lines, data: Data, world: int) -> Counted:
    """Judge one pass of a loader that does not train."""
    shares = Shares.of(lines)
    if shares is None or any(line.keyed for line in lines.values()) or data in (Data.DIFFERENT, Data.UNKNOWN):
        return Counted(())
    counted = shares.size, shares.lost, shares.duplicated
    if shares.once:
        return Counted((right("each sample handed out exactly once"),), *counted)
    if len(lines) < world or not all(line.whole for line in lines.values()):
        return Counted((), shares.size)
    return Counted(tuple(_found(lines, shares)), *counted)


def _found(lines: Lines, shares: Shares) -> Iterator[Finding]:
    extra = shares.all_handed.count - shares.size
    if shares.one_part and all(sets.equal(each, shares.held[rank]) for rank, each in shares.handed.items()):
        yield note("all evaluate", f"each rank evaluates all {shares.size} samples")
    elif len({line.order for line in lines.values()}) < len(lines):
        told = "ranks evaluate the same samples in the same order"
        if shares.lost.share > _SOME and causes.is_plain(lines) and (why := causes.places(lines)):
            yield fault("alike", f"{told}, and {shares.lost} are evaluated by no rank: {why}")
        else:
            yield note("alike", told)
    elif causes.replaces(lines) or causes.chooses(lines):
        if shares.duplicated.share > _SOME:
            yield note("drawn", f"{causes.names(lines)} draws {shares.duplicated} for several ranks")
    elif shares.lost.share > _SOME and shares.duplicated.share > _SOME and causes.is_plain(lines):
        told = f"{shares.lost} are evaluated by no rank, and {shares.duplicated} by more than one"
        yield fault("overlap", f"{told}: {causes.of_overlap(lines)}")
    elif not shares.one_part and shares.parts_overlap.share > _SOME:
        yield note("parts", f"{shares.parts_overlap} are held, and evaluated, by several ranks")
    elif extra > 0 and (shares.one_part or not shares.parts_overlap.hits):
        counts = "counts" if extra == 1 else "count"
        yield note(
            "padding",
            f"{extra} of {shares.size} samples {counts} twice in this evaluation unless the program drops them, as "
            "Accelerate's gather_for_metrics does",
        )
    elif extra < 0 and (shares.one_part or not shares.parts_overlap.hits):
        told = f"{-extra} of {shares.size} samples"
        if -extra > uneven_pass.last_batches(lines) and causes.is_plain(lines):
            why = uneven_pass.sharded_twice(lines, shares)
            yield fault("sharded twice", f"{told} are evaluated by no rank: {why}")
        else:
            yield note("dropped", f"this pass leaves out {told}")
