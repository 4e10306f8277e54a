"""One pass that trains: each sample is to be handed out once, to one rank."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchtally.observed import causes, sets
from torchtally.observed.causes import Lines
from torchtally.observed.data import Data
from torchtally.observed.finding import Finding, Sign, fault, note, numbers, ranks, right
from torchtally.observed.shares import Amount, Shares

_SOME = 0.02  # of the samples that are looked at: less can be chance
_SAMPLER = (
    "pass sampler=DistributedSampler(dataset) to the DataLoader in place of shuffle, and call its set_epoch(epoch)"
)


@dataclass(frozen=True)
class Counted:
    """What a pass of all ranks comes to. `lost` and `duplicated` are None where they cannot be told."""

    findings: tuple[Finding, ...]
    samples: int | None = None  # to hand out
    lost: Amount | None = None
    duplicated: Amount | None = None

    @property
    def is_judged(self) -> bool:
        """Whether it is right, or it could be seen that few or no samples are duplicated or, of a whole pass, lost."""
        if any(each.sign is Sign.RIGHT for each in self.findings):
            return True
        seen = [each.share for each in (self.duplicated, self.lost) if each]
        return self.duplicated is not None and max(seen) <= _SOME


def judge(lines: Lines, data: Data, world: int, elsewhere: int) -> Counted:
    """Judge one pass of a loader that trains. `elsewhere`: the bits of samples that other loaders hold or hand out."""
    if any(line.keyed for line in lines.values()):
        return Counted((note("keys", "its samples have keys that are no indices, so they cannot be compared"),))
    if any(line.loader.type == "DataLoaderDispatcher" for line in lines.values()):
        return Counted((note("dispatched", "rank 0 draws all batches and hands slices to the others: not judged"),))
    if not all(line.process.grouped for line in lines.values()) and world > 1:
        return Counted((note("apart", "the ranks share no process group, as if each trained a model of its own"),))
    shares = Shares.of(lines)
    if shares is None:
        return Counted((note("length", "its dataset does not tell its length, so nothing is judged"),))
    if world == 1:
        return _alone(lines, shares)
    if len(lines) < world:
        verb = "has" if len(lines) == 1 else "have"
        return Counted((note("some", f"{ranks([*lines])} {verb} this pass alone, of {world}: not judged"),))
    if data in (Data.DIFFERENT, Data.UNKNOWN):
        return Counted((_of_own_data(lines, data),))
    if causes.replaces(lines):
        return _replacing(lines, shares)
    counted = _divided(lines, shares, world)
    unheld = shares.unheld(elsewhere)
    if not shares.one_part and unheld.hits:
        held = "each sample that the ranks hold"
        findings = [replace(each, text=each.text.replace("each sample", held)) for each in counted.findings]
        told = note("unheld", f"{unheld} are held by no rank and no other loader")
        return replace(counted, findings=(*findings, told))
    return counted


def _alone(lines: Lines, shares: Shares) -> Counted:
    if shares.once:
        return Counted((right("each sample once"),), shares.size, Amount(0, 1, 1), Amount(0, 1, 1))
    found = [*_left(lines, shares)]
    if not found and causes.replaces(lines):
        found = [_share_drawn(shares)]
    if not found:
        found = [note("alone", f"{shares.all_handed.count} samples are handed out of {shares.size}")]
    return Counted(tuple(found), shares.size, None, None if causes.replaces(lines) else shares.duplicated)


def _of_own_data(lines: Lines, data: Data) -> Finding:
    if data is Data.DIFFERENT:
        attributes = {line.base.attributes for line in lines.values() if line.base}
        whole = all(line.whole for line in lines.values())
        divided = all(line.sampler.get("num_replicas") == line.process.world for line in lines.values())
        if divided and (sentence := causes.orders_apart(lines)):
            return fault("seeds", f"the shards overlap: {sentence}")
        if whole and divided and len(attributes) > 1 and _halves(lines):
            return note(
                "sharded twice",
                f"each rank has data of its own, of which its sampler hands out only a part ({_parts(lines)}): sharded "
                "twice, split by each rank for itself, or drawn without a common seed",
            )
        return note(
            "own data",
            "the ranks have different data under the same indices, so their shards cannot be compared: each has files "
            "of its own, or draws its data without a common seed",
        )
    return note(
        "unknown data",
        "whether the ranks have the same data cannot be told (random augmentation, padding, or data of their own), so "
        "nothing is judged",
    )


def _halves(lines: Lines) -> bool:
    """Whether samplers hand out the share of one rank."""
    return causes.divides(lines) and all(
        line.base and line.base.length and line.samples < 0.75 * line.base.length for line in lines.values()
    )


def _parts(lines: Lines) -> str:
    line = next(iter(lines.values()))
    return f"{line.samples} of {line.base.length if line.base else '?'} on rank {line.rank}"


def _replacing(lines: Lines, shares: Shares) -> Counted:
    if len(_alike(lines)) == 1:
        return Counted((_all_alike(lines, shares),), shares.size, shares.lost, shares.duplicated)
    return Counted((_share_drawn(shares),), shares.size)


def _share_drawn(shares: Shares) -> Finding:
    lost = shares.lost
    drawn = Amount(lost.looked - lost.hits, lost.looked, lost.total)
    return note("replacement", f"samples are drawn with replacement: {drawn} are drawn in this pass")


def _divided(lines: Lines, shares: Shares, world: int) -> Counted:
    whole = all(line.whole for line in lines.values())
    counted = shares.size, shares.lost if whole else None, shares.duplicated
    if shares.once:
        none = Amount(0, shares.size, shares.size)
        told = "each sample handed out exactly once"
        return Counted((right(told),), shares.size, none, none)
    classes = _alike(lines)
    everything = [rank for rank, each in shares.handed.items() if sets.equal(each, shares.held[rank])]
    if shares.one_part and len(everything) == world:
        duplicated = Amount(shares.size, shares.size, shares.size)
        order = " in the same order" if len(classes) == 1 else ""
        why = causes.places(lines) or _SAMPLER
        text = f"each rank is handed all {shares.size} samples{order}, and no sampler divides them: {why}"
        if not _peers(lines, classes):
            return Counted((fault("not sharded", text),), shares.size, Amount(0, shares.size, shares.size), duplicated)
    if len(classes) == 1:
        return Counted((_all_alike(lines, shares),), *counted)
    if 1 < len(classes) < world and len({len(each) for each in classes}) == 1:
        return _of_classes(lines, shares, classes)
    return Counted(tuple(_uneven(lines, shares, world)), *counted)


def _alike(lines: Lines) -> list[list[int]]:
    """Ranks by what they are handed, in order: those that are handed the same samples in the same order together."""
    found: dict[object, list[int]] = defaultdict(list)
    for rank, line in sorted(lines.items()):
        found[line.order, line.samples].append(rank)
    return list(found.values())


def _peers(lines: Lines, classes: list[list[int]]) -> bool:
    """Whether a device mesh says that these ranks are handed the same samples on purpose."""
    return all(len(each) > 1 and any(set(each) <= set(group) for group in _groups(lines, each)) for each in classes)


def _groups(lines: Lines, some: list[int]) -> list[tuple[int, ...]]:
    return [group for rank in some for group in lines[rank].process.groups]


def _all_alike(lines: Lines, shares: Shares) -> Finding:
    count = shares.handed[min(lines)].count
    why = causes.places(lines) or _SAMPLER
    others = f", and {shares.lost} go to no rank" if shares.lost.hits else ""
    if not all(line.whole for line in lines.values()):
        others = ""
    return fault("all alike", f"all ranks are handed the same {count} samples in the same order{others}: {why}")


def _of_classes(lines: Lines, shares: Shares, classes: list[list[int]]) -> Counted:
    """Several ranks are handed the same: on purpose, as with tensor parallelism, or because nodes have one shard."""
    told = f"the same samples go in the same order to {'; '.join(ranks(each) for each in classes[:4])}"
    one_of_each = {each[0]: lines[each[0]] for each in classes}
    rest = Shares.of(one_of_each)
    assert rest
    if not _peers(lines, classes) and ((rest.lost.hits and not rest.once) or _is_local(lines)):
        others = f", and {shares.lost} go to no rank" if shares.lost.hits else ""
        why = causes.places(lines) or "pass rank=dist.get_rank() and its world size to the sampler"
        found = fault("alike", f"{told}{others}: {why}")
        return Counted((found,), shares.size, shares.lost, shares.duplicated)
    meant = "as their process groups say" if _peers(lines, classes) else "right if they hold parts of one model"
    counted = _divided(one_of_each, rest, len(classes))
    known = [each for each in counted.findings if each.sign is not Sign.RIGHT]  # nobody knows what the groups are for
    return replace(counted, findings=(*known, note("peers", f"{told}, {meant}")))


def _is_local(lines: Lines) -> bool:
    """Whether each sampler has the local rank in place of the rank."""
    found = {rank: line.sampler.get("rank") for rank, line in lines.items()}
    local = {rank: line.process.local for rank, line in lines.items()}
    return found == local and None not in found.values() and found != {rank: rank for rank in lines}


def _uneven(lines: Lines, shares: Shares, world: int) -> Iterator[Finding]:
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
            yield note("not divided", f"{told}: {_SAMPLER}")
        yield from _left(lines, shares)
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
    return len(lines) + sum(-(-line.samples // max(1, line.batches)) for line in lines.values())


def _goes_over_all(lines: Lines, shares: Shares) -> bool:
    """Whether each rank would be handed everything in a whole pass, by the number of batches that its loader has."""
    plain = shares.one_part and causes.is_plain(lines) and not causes.chooses(lines) and not causes.divides(lines)
    return plain and all(
        "in" not in line.sampler and (line.of or 0) * batch > shares.size - batch > 0
        for line in lines.values()
        for batch in [line.loader.batch or 0]
    )


def _may_be_meant(lines: Lines, about: str, told: str, shares: Shares) -> Finding:
    if not causes.is_plain(lines):
        return note(about, f"{told}, which may be the purpose of {causes.names(lines)}")
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


def _left(lines: Lines, shares: Shares) -> Iterator[Finding]:
    left = [line for line in lines.values() if not line.whole]
    if left:
        count = shares.all_handed.count
        if count > shares.size:
            how = "goes round more than once"
        elif any(line.resumed for line in left):
            how = "resumes from a state"
        else:
            how = "is still open" if any(line.end == "open" for line in left) else "ends early"
        yield note(f"left {how}", f"the pass {how}: {count} samples are handed out of {shares.size}")
