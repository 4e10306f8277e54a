"""Why ranks are handed the wrong samples, and what to do, as far as their samplers and processes tell."""

from collections.abc import Mapping

from torchtally.observed.finding import listed, ranks
from torchtally.observed.line import Handed

# Samplers that are made to hand out each sample once. With another one, what is uneven may be its purpose.
_PLAIN = {"DistributedSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "BatchSampler"}
_PLAIN |= {"list", "tuple", "range", "ndarray"}
_PLAIN |= {"SeedableRandomSampler", "UnrepeatedDistributedSampler", "UnrepeatedDistributedSamplerWrapper"}
_PLAIN |= {"ResumableDistributedSampler", "StatefulDistributedSampler"}
# They hand out some of the samples on purpose, each once.
_OF_SOME = {"SubsetRandomSampler", "list", "tuple", "range", "ndarray"}
# Batch samplers that hand on what they draw, but for what they divide or skip.
_AROUND = {"BatchSamplerShard", "SkipBatchSampler"}
_WITH_REPLACEMENT = {"WeightedRandomSampler"}

Lines = Mapping[int, Handed]  # by rank


def is_plain(lines: Lines) -> bool:
    return all(line.sampler.get("type") in _PLAIN for line in lines.values())


def with_a_purpose(lines: Lines) -> str | None:
    """The samplers that may leave out or repeat samples on purpose; None where only known ones draw."""
    if not is_plain(lines):
        return names(lines)
    around = {str(line.sampler["in"]) for line in lines.values() if line.sampler.get("in", "") not in {"", *_AROUND}}
    return listed(sorted(around)) if around and not (orders_apart(lines) or places(lines)) else None


def chooses(lines: Lines) -> bool:
    """Whether samplers are given which samples to hand out."""
    return any(line.sampler.get("type") in _OF_SOME for line in lines.values())


def names(lines: Lines) -> str:
    """The types of the samplers."""
    return listed(sorted({str(line.sampler.get("type")) for line in lines.values()}))


def replaces(lines: Lines) -> bool:
    """Whether samples are drawn with replacement, or some of them anew in each pass."""
    return any(
        line.sampler.get("type") in _WITH_REPLACEMENT or line.sampler.get("replacement") is True or _draws_some(line)
        for line in lines.values()
    )


def _draws_some(line: Handed) -> bool:
    """Whether a RandomSampler has a num_samples below what there is, by the number of its batches."""
    held = line.holds.count if line.holds else (line.base.length or 0) if line.base else 0
    batch = -(-line.samples // max(1, line.batches))
    alone = line.sampler.get("type") == "RandomSampler" and "in" not in line.sampler
    return alone and line.of is not None and not line.resumed and (line.of + 1) * batch < held


def divides(lines: Lines) -> bool:
    """Whether samplers divide their data over ranks."""
    return all(int(line.sampler.get("num_replicas", 1)) > 1 for line in lines.values())


def orders_apart(lines: Lines) -> str | None:
    """A sentence on samplers that divide shuffles of their own: those of other seeds, or of other epochs."""
    if not divides(lines) or any(line.sampler.get("shuffle") is False for line in lines.values()):
        return None
    found = _values(lines, "seed")
    if len(set(found.values())) > 1:
        return (
            f"the samplers of {ranks([*found])} have seeds {listed([str(each) for each in found.values()])}: give all "
            "ranks the same seed"
        )
    found = _values(lines, "epoch")
    if len(set(found.values())) > 1:
        shown = listed([str(each) for each in found.values()])
        return f"the samplers of {ranks([*found])} are at epochs {shown}: call set_epoch(epoch) alike on all ranks"
    return None


def of_overlap(lines: Lines) -> str:
    """Why ranks overlap and miss samples, in a sentence that says what to do."""
    if sentence := orders_apart(lines) or places(lines):
        return sentence
    if not divides(lines):
        return (
            f"each rank draws for itself ({names(lines)}): pass sampler=DistributedSampler(dataset) to the DataLoader"
        )
    return "each rank seems to draw for itself: seed what draws the order alike on all ranks"


def places(lines: Lines) -> str | None:
    """A sentence on samplers that have another rank than their process, or another number of ranks."""
    found = _values(lines, "rank")
    local = {rank: line.process.local for rank, line in lines.items()}
    replicas = set(_values(lines, "num_replicas").values())
    world = {line.process.world for line in lines.values()}
    if not found or (found == {rank: rank for rank in lines} and replicas == world):
        return None
    if found == {rank: rank for rank in lines}:
        given = listed([str(each) for each in sorted(replicas)])
        return f"num_replicas is {given}, and there are {max(world)} ranks: pass num_replicas=dist.get_world_size()"
    shown = f"the samplers of {ranks([*found])} have rank {listed([str(each) for each in found.values()])}"
    of = f" of {listed([str(each) for each in sorted(replicas)])}" if replicas else ""
    if found == local or len(set(found.values())) < len(found):
        return f"{shown}{of}, which looks like the local rank: pass rank=dist.get_rank() and its world size"
    return f"{shown}{of}"


def _values(lines: Lines, name: str) -> dict[int, int]:
    found = {rank: line.sampler.get(name) for rank, line in sorted(lines.items())}
    return {rank: int(value) for rank, value in found.items() if value is not None}
