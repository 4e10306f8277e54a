"""The lost and duplicated samples that a line reports, against those that its digest shows."""

from collections.abc import Iterator

from torchtally.proof.decoder import Stretch
from torchtally.proof.digest import Digest
from torchtally.proof.line import NAMED, TallyLine
from torchtally.verifier import diagnosis, expected
from torchtally.verifier.phrasing import differing, numbers, who

_FEW = 8  # positions that a digest can name, whichever they are


def faults(line: TallyLine) -> Iterator[str]:
    """Contradictions between the two; where they agree that samples are wrong, the steps of these samples."""
    difference = expected.difference(line)
    stretches = expected.explain(line, difference)
    if stretches is None:
        if not _can_be(line, difference):
            many = ", too many to name" * expected.CAN_NAME
            yield (
                f"{_says(line)} {_claim(line)}, but {_its(line)} digest does not match: "
                f"other samples were consumed than the line reports{many}"
            )
        return
    if line.rank == "all" and not stretches and any(difference.words):
        yield (
            "all ranks together consumed the right positions of the order, but the sums of their sample indices do "
            f"not match ({differing(difference, Digest())}): {line.order} was computed in a different way there"
        )
        if line.lost is None:  # as the trainer has it then
            return
    counts = _counts(line, stretches)
    if counts == (0, 0) != (line.lost, line.duplicated):
        yield f"{_says(line)} lost or duplicated samples, but {_its(line)} digest is that of the whole shard"
        return
    named = "; ".join(diagnosis.describe(line, stretches))
    if counts != (line.lost, line.duplicated):
        lost, duplicated = counts
        shows = f"{_its(line)} digest shows {lost} lost and {duplicated} duplicated"
        yield f"{_says(line)} {_claim(line)}, but {shows}: {named}"
    else:
        yield from (f"{who([line.rank])}: {text}" for text in diagnosis.describe_ranges(line, stretches))
    for text in _misnamed(line, stretches):
        yield f"{text}, but {_its(line)} digest shows that {named}"


def _counts(line: TallyLine, stretches: list[Stretch]) -> tuple[int, int]:
    """Lost and duplicated samples according to the digest."""
    lost = -sum(each.times * each.positions.count for each in stretches if each.times < 0)
    return lost, sum(each.times * each.positions.count for each in stretches if each.times > 0) + line.outside


def _misnamed(line: TallyLine, stretches: list[Stretch]) -> Iterator[str]:
    """Names that contradict the digest. The line names up to eight of each: all of them if there are fewer."""
    name = "all ranks together name" if line.rank == "all" else f"rank {line.rank} names"
    for what, sign, names in (("lost", -1, line.lost_indices), ("duplicated", 1, line.duplicated_indices)):
        inside = tuple(sorted({index for index in names if 0 <= index < line.n}))
        if len(strays := sorted({*names} - {*inside})) > line.outside:
            yield f"{name} {', '.join(map(str, strays))} as {what}, outside of 0 to {line.n - 1}"
        these = [each.positions for each in stretches if each.times * sign > 0]
        at = expected.positions(line, inside)
        others = [index for index, p in zip(inside, at, strict=True) if not any(expected.contains(o, p) for o in these)]
        if others:
            yield f"{name} {numbers('sample', others)} as {what}"
        elif names and len(names) < NAMED and len(inside) < sum(each.count for each in these):
            yield f"{name} no more than {', '.join(map(str, names))} as {what}"


def _can_be(line: TallyLine, difference: Digest) -> bool:
    """Whether the line can be true though its digest is too far off to be decoded."""
    if line.lost is None or line.duplicated is None:
        return True
    lost, duplicated = line.lost_indices, tuple(index for index in line.duplicated_indices if 0 <= index < line.n)
    really_duplicated = line.duplicated - line.outside
    if (len(lost), len(duplicated)) == (line.lost, really_duplicated):  # all are named, up to 8 of each
        named = expected.of_samples(line, duplicated) - expected.of_samples(line, lost)
        return named.of_positions == difference.of_positions
    return line.lost + really_duplicated > (_FEW if expected.CAN_NAME else 0)


def _claim(line: TallyLine) -> str:
    if line.lost is None:
        return "too many lost or duplicated samples to count"
    if line.lost or line.duplicated:
        return f"{line.lost} lost and {line.duplicated} duplicated"
    return "nothing lost or duplicated"


def _says(line: TallyLine) -> str:
    return "all ranks together report" if line.rank == "all" else f"rank {line.rank} reports"


def _its(line: TallyLine) -> str:
    return "their" if line.rank == "all" else "its"
