"""What a line says was lost and doubled, held against what its digest says."""

from collections.abc import Iterator

from torchtally.proof.digest import Digest, Stretch

from . import expected, told
from .lines import NAMED, Tally
from .words import differing, numbers, who

_FEW = 8  # positions that a digest can name, whichever they are


def faults(tally: Tally) -> Iterator[str]:
    """Where the two contradict each other, and which steps it is, where they agree that some are wrong."""
    difference = expected.difference(tally)
    stretches = expected.explain(tally, difference)
    if stretches is None:
        if not _can_be(tally, difference):
            many = ", more than can be named" * expected.CAN_NAME
            yield (
                f"{_says(tally)} {_claim(tally)}, but {_its(tally)} digest does not fit: "
                f"other samples were consumed than the line says{many}"
            )
        return
    if tally.rank == "all" and not stretches and any(difference.words):
        yield (
            "all ranks together consumed the right positions of the order, but the sums of their sample indices do "
            f"not fit ({differing(difference, Digest())}): {tally.order} was computed in another way there"
        )
        if tally.lost is None:  # as the trainer has it then
            return
    counts = _counts(tally, stretches)
    if counts == (0, 0) != (tally.lost, tally.doubled):
        yield f"{_says(tally)} that samples were lost or doubled, but {_its(tally)} digest is that of the whole shard"
        return
    named = "; ".join(told.told(tally, stretches))
    if counts != (tally.lost, tally.doubled):
        lost, doubled = counts
        yield (
            f"{_says(tally)} {_claim(tally)}, but by {_its(tally)} digest it is {lost} lost and {doubled} doubled: "
            f"{named}"
        )
    else:
        yield from (f"{who([tally.rank])}: {text}" for text in told.at_length(tally, stretches))
    for text in _misnamed(tally, stretches):
        yield f"{text}, but by {_its(tally)} digest {named}"


def _counts(tally: Tally, stretches: list[Stretch]) -> tuple[int, int]:
    """Lost and doubled, as the digest has it."""
    lost = -sum(each.times * each.positions.count for each in stretches if each.times < 0)
    return lost, sum(each.times * each.positions.count for each in stretches if each.times > 0) + tally.outside


def _misnamed(tally: Tally, stretches: list[Stretch]) -> Iterator[str]:
    """The line may name eight of each, and names all where that is fewer."""
    name = "all ranks together name" if tally.rank == "all" else f"rank {tally.rank} names"
    for what, sign, names in (("lost", -1, tally.lost_indices), ("doubled", 1, tally.doubled_indices)):
        inside = tuple(sorted({index for index in names if 0 <= index < tally.n}))
        if len(strays := sorted({*names} - {*inside})) > tally.outside:
            yield f"{name} {', '.join(map(str, strays))} as {what}, outside of 0 to {tally.n - 1}"
        these = [each.positions for each in stretches if each.times * sign > 0]
        at = expected.positions(tally, inside)
        others = [index for index, p in zip(inside, at, strict=True) if not any(expected.contains(o, p) for o in these)]
        if others:
            yield f"{name} {numbers('sample', others)} as {what}"
        elif names and len(names) < NAMED and len(inside) < sum(each.count for each in these):
            yield f"{name} no more than {', '.join(map(str, names))} as {what}"


def _can_be(tally: Tally, difference: Digest) -> bool:
    """Whether what the line says can be true, though its digest is too far off to be read."""
    if tally.lost is None or tally.doubled is None:
        return True
    lost, doubled = tally.lost_indices, tuple(index for index in tally.doubled_indices if 0 <= index < tally.n)
    really_doubled = tally.doubled - tally.outside
    if (len(lost), len(doubled)) == (tally.lost, really_doubled):  # all are named, up to 8 of each
        named = expected.of_samples(tally, doubled) - expected.of_samples(tally, lost)
        return named.of_positions == difference.of_positions
    return tally.lost + really_doubled > (_FEW if expected.CAN_NAME else 0)


def _claim(tally: Tally) -> str:
    if tally.lost is None:
        return "more lost or doubled than can be counted"
    return (
        f"{tally.lost} lost and {tally.doubled} doubled" if tally.lost or tally.doubled else "nothing lost or doubled"
    )


def _says(tally: Tally) -> str:
    return "all ranks together say" if tally.rank == "all" else f"rank {tally.rank} says"


def _its(tally: Tally) -> str:
    return "their" if tally.rank == "all" else "its"
