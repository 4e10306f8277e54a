"""One pass that trains: each sample is to be handed out once, to one rank."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchtally.observed import causes, data, sets, uneven_pass
from torchtally.observed.causes import Lines
from torchtally.observed.data import Data
from torchtally.observed.finding import Finding, Sign, fault, listed, note, ranks, right
from torchtally.observed.line import Base, Handed
from torchtally.observed.shares import Amount, Shares

_SOME = 0.02  # of the samples that are looked at: less can be chance


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


def judge(lines: Lines, same: Data, world: int, elsewhere: int) -> Counted:
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
    if same in (Data.DIFFERENT, Data.UNKNOWN):
        return Counted((*_of_groups(lines, same), _of_own_data(lines, same)))
    if causes.replaces(lines) and not shares.once:
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
    found = [*uneven_pass.left(lines, shares)]
    if not found and causes.replaces(lines):
        found = [_share_drawn(shares)]
    if not found:
        found = [note("alone", f"{shares.all_handed.count} samples are handed out of {shares.size}")]
    if causes.replaces(lines):
        return Counted(tuple(found), shares.size)
    known = all(line.whole for line in lines.values()) and not causes.chooses(lines)
    return Counted(tuple(found), shares.size, shares.lost if known else None, shares.duplicated)


def _of_groups(lines: Lines, same: Data) -> Iterator[Finding]:
    """Faults among ranks that have the same data as some others alone, as where a node, or a local rank, has files."""
    groups: dict[Base | None, dict[int, Handed]] = defaultdict(dict)
    for rank, line in sorted(lines.items()):
        groups[line.base][rank] = line
    for base, own in groups.items():
        shares = Shares.of(own)
        apart = same is Data.DIFFERENT and 1 < len(own) < len(lines) and not causes.replaces(own)
        if apart and shares and base and base.rows and data.of(own.values()) is Data.SAME:
            for each in _divided(own, shares, len(own)).findings:
                if each.sign is Sign.FAULT:
                    yield fault(f"{each.about} {[*own]}", f"{ranks([*own])} have the same data: {each.text}")


def _of_own_data(lines: Lines, same: Data) -> Finding:
    if same is Data.DIFFERENT:
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
    return note("replacement", f"samples are drawn with replacement, or a part of them: {drawn} are drawn in this pass")


def _divided(lines: Lines, shares: Shares, world: int) -> Counted:
    whole = all(line.whole for line in lines.values())
    counted = shares.size, shares.lost if whole else None, shares.duplicated
    if shares.once:
        none = Amount(0, shares.size, shares.size)
        told = "each sample handed out exactly once"
        return Counted((right(told),), shares.size, none, none)
    if len({line.resumed for line in lines.values()}) > 1:
        told = listed([str(line.resumed) for _, line in sorted(lines.items())])
        text = f"{ranks([*lines])} resume after {told} batches: give each rank the state that it had, or all the same"
        return Counted((note("resumed apart", text),), shares.size)
    classes = _alike(lines)
    everything = [rank for rank, each in shares.handed.items() if sets.equal(each, shares.held[rank])]
    if shares.one_part and len(everything) == world:
        duplicated = Amount(shares.size, shares.size, shares.size)
        order = " in the same order" if len(classes) == 1 else ""
        why = causes.places(lines) or uneven_pass.SAMPLER
        text = f"each rank is handed all {shares.size} samples{order}, and no sampler divides them: {why}"
        if not _peers(lines, classes):
            return Counted((fault("not sharded", text),), shares.size, Amount(0, shares.size, shares.size), duplicated)
    if len(classes) == 1:
        return Counted((_all_alike(lines, shares),), *counted)
    if 1 < len(classes) < world and len({len(each) for each in classes}) == 1:
        return _of_classes(lines, shares, classes)
    found = tuple(uneven_pass.found(lines, shares, world))
    if any(each.about == uneven_pass.NOT_DIVIDED for each in found):
        return Counted(found, shares.size)
    return Counted(found, *counted)


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
    why = causes.places(lines) or uneven_pass.SAMPLER
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
