"""One pass that trains, and does not hand out each sample once: what is wrong, and what may be meant."""

from collections.abc import Iterator

from torchtally.observed import causes, sets
from torchtally.observed.causes import Lines
from torchtally.observed.finding import Finding, fault, note, numbers, right
from torchtally.observed.line import Handed
from torchtally.observed.shares import Shares

_SOME = 0.02  # of the samples that are looked at: less can be chance
NOT_DIVIDED = "not divided"
SAMPLER = (
    "pass sampler=DistributedSampler(dataset) to the DataLoader in place of shuffle, and call its set_epoch(epoch)"
)


def found(lines: Lines, shares: Shares, world: int) -> Iterator[Finding]:
    """What is wrong, or may be meant, with a pass that does not hand out each sample once."""
    lost, duplicated = shares.lost, shares.duplicated
    whole = all(line.whole for line in lines.values())
    if not whole:
        goes_round = shares.all_handed.count > shares.size and causes.divides(lines) and not causes.places(lines)
        if orders := causes.orders_apart(lines):
            yield fault("overlap", f"{duplicated} go to more than one rank: {orders}")
        elif goes_round and (times := shares.times):
            yield right(f"each sample handed out {times} times")
        elif duplicated.share > _SOME and causes.is_plain(lines) and not goes_round:
            yield fault("overlap", f"{duplicated} go to more than one rank: {causes.of_overlap(lines)}")
        elif _goes_over_all(lines, shares):
            told = f"no sampler divides the samples, so a whole pass hands out all {shares.size} to each rank"
            yield note(NOT_DIVIDED, f"{told}: {SAMPLER}")
        elif not goes_round and (short := _short(lines, shares)):
            yield _may_be_meant(lines, "lost", f"a whole pass hands out about {short} of {shares.size} samples", shares)
        yield from left(lines, shares)
        return
    apart = not shares.one_part and shares.parts_overlap.share <= _SOME
    if apart and sets.equal(shares.all_handed, shares.all_held):
        over = shares.all_held.count - shares.length
        if over > 0 or shares.parts_overlap.hits:
            count = f"{over} samples" if over > 0 else str(shares.parts_overlap)
            yield note("parts", f"the parts that the ranks hold overlap: at least {count} are in more than one")
        else:
            looked = sets.looked(shares.length)
            yield right(f"each sample that the ranks hold handed out once, as far as {looked} samples tell")
        return
    extra = shares.all_handed.count - shares.size
    most = last_batches(lines)
    if not shares.one_part and shares.parts_overlap.share > _SOME:
        yield _own_splits(lines, shares)
    elif lost.share > _SOME and duplicated.share > _SOME:
        yield _may_be_meant(lines, "overlap", f"{lost} go to no rank, and {duplicated} to more than one", shares)
    elif extra < 0 and causes.chooses(lines):
        yield note("chosen", f"{lost} are not among those that {causes.names(lines)} hands out")
    elif extra < 0 and -extra > most:
        yield _may_be_meant(lines, "lost", f"{-extra} of {shares.size} samples go to no rank", shares)
    elif extra > most or (duplicated.share > _SOME and extra > most - world):
        yield _may_be_meant(lines, "duplicated", f"{extra} samples are handed out more than once", shares)
    elif extra > 0:
        yield from _padded(shares, extra)
    elif extra < 0:
        yield from _dropped(shares, -extra)
    else:
        yield _may_be_meant(lines, "moved", f"{lost} go to no rank, and as many to more than one", shares)


def last_batches(lines: Lines) -> int:
    """How many samples loaders and samplers leave out at most, or repeat, that drop or fill the last batch."""
    return len(lines) + sum(_batch(line) for line in lines.values())


def _batch(line: Handed) -> int:
    return -(-line.samples // max(1, line.batches))


def _goes_over_all(lines: Lines, shares: Shares) -> bool:
    """Whether each rank would be handed everything in a whole pass, by the number of batches that its loader has."""
    plain = shares.one_part and causes.is_plain(lines) and not causes.chooses(lines) and not causes.divides(lines)
    return plain and all(
        "in" not in line.sampler and (line.of or 0) * batch > shares.size - batch > 0
        for line in lines.values()
        for batch in [line.loader.batch or 0]
    )


def _short(lines: Lines, shares: Shares) -> int | None:
    """How many samples a whole pass hands out, by the number of its batches, where that is a part; else None."""
    if causes.chooses(lines) or any(line.of is None or line.resumed for line in lines.values()):
        return None
    if not shares.one_part and shares.parts_overlap.hits:
        return None
    planned = sum((line.of or 0) * max(line.loader.batch or 0, _batch(line)) for line in lines.values())
    return planned if planned < shares.size - last_batches(lines) else None


def _may_be_meant(lines: Lines, about: str, told: str, shares: Shares) -> Finding:
    if purpose := causes.with_a_purpose(lines):
        return note(about, f"{told}, which may be the purpose of {purpose}")
    if about == "lost":
        return fault("sharded twice", f"{told}: {sharded_twice(lines, shares)}")
    return fault(about, f"{told}: {causes.of_overlap(lines)}")


def sharded_twice(lines: Lines, shares: Shares) -> str:
    """Why ranks together are handed a part alone."""
    inside = next((line.sampler["in"] for line in lines.values() if "in" in line.sampler), None)
    if inside:
        return f"sharded twice, by {causes.names(lines)} and by {inside}; leave out one of them"
    if not shares.one_part and causes.divides(lines):
        return "sharded twice, as each rank holds a part of its own, which its sampler divides again; leave out one"
    return causes.places(lines) or f"{causes.names(lines)} hands out only a part"


def _own_splits(lines: Lines, shares: Shares) -> Finding:
    return fault(
        "own splits",
        "the parts of the dataset that the ranks hold overlap in part, as if each rank had drawn a split of its own: "
        f"{shares.lost} go to no rank, and {shares.duplicated} to more than one; give random_split the same "
        "generator=torch.Generator().manual_seed(...) on all ranks",
    )


def _padded(shares: Shares, extra: int) -> Iterator[Finding]:
    named = sets.few(shares.all_handed, shares.all_held)
    which = f" ({'sample' if len(named) == 1 else 'samples'} {numbers(named)})" if named else ""
    if named or shares.lost.exact:
        yield right("each sample handed out at least once")
    again = "1 sample is" if extra == 1 else f"{extra} samples are"
    yield note("padding", f"{again} handed out twice{which}, so that all ranks have equally many")


def _dropped(shares: Shares, missing: int) -> Iterator[Finding]:
    named = sets.few(shares.all_held, shares.all_handed)
    which = f" ({'sample' if len(named) == 1 else 'samples'} {numbers(named)})" if named else ""
    yield note(
        "dropped",
        f"{missing} of {shares.size} samples{which} are left out of a pass: a sampler or a loader drops the last",
    )


def left(lines: Lines, shares: Shares) -> Iterator[Finding]:
    """A note on a pass that is not whole."""
    some = [line for line in lines.values() if not line.whole]
    if some:
        count = shares.all_handed.count
        if count > shares.size:
            how = "goes round more than once"
        elif any(line.resumed for line in some):
            how = "resumes from a state"
        else:
            how = "is still open" if any(line.end == "open" for line in some) else "ends early"
        yield note(f"left {how}", f"the pass {how}: {count} samples are handed out of {shares.size}")
