"""The samples that each rank should have consumed, from the fields of its line alone. Nothing here grows with n."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from operator import attrgetter

import numpy as np
from msgspec import structs

from torchtally.proof import decoder, digest
from torchtally.proof.contract import Contract
from torchtally.proof.decoder import Stretch
from torchtally.proof.digest import Digest
from torchtally.proof.line import TallyLine
from torchtally.proof.modular import P, Words, exact_sum
from torchtally.proof.order import DRAWN, sizes_of
from torchtally.proof.shard_sizes import ShardSizes
from torchtally.proof.shards import Progression, Shard
from torchtally.verifier.line_groups import Lines

CAN_NAME = bool(find_spec("sympy"))  # without it a wrong digest is found, but no lost or duplicated sample is named


def with_sizes(line: TallyLine, sizes: Mapping[str, ShardSizes]) -> TallyLine:
    """The line with the sizes that its order names, if they are known by their fingerprint."""
    named = sizes_of(line.shard.order)
    known = sizes.get(named.fingerprint) if named else None
    return structs.replace(line, sizes=known) if known and known.total == line.n else line


def size(line: TallyLine) -> int:
    """Samples in the shard of the line's rank; of all ranks together, those before `start` too."""
    if line.drawn_digest:
        return line.of_drawn.words[0]
    shard = line.shard
    return shard.start + shard.total if line.rank == "all" else shard.size


def parts(line: TallyLine) -> list[Progression]:
    """The positions of the line's shard, in the order in which they are consumed; of all ranks, the whole order.

    Those of an epoch that ends by plan continue behind its end, for a loop may have continued.
    """
    if line.rank == "all" or line.drawn_digest:
        return [Progression(0, 1, line.n)]
    shard = line.shard
    return (shard if shard.end is None else replace(shard, end=None, contract="exact")).progressions


def times(line: TallyLine, position: int) -> int:
    """How often the line's rank, or all of them together, should have consumed the sample at `position`."""
    if line.rank == "all":  # the positions 0, 1, 2, ..., which start again at n
        return max(0, -((position - size(line)) // line.n))
    found = number(line, position)
    return int(found is not None and found < size(line))


def number(line: TallyLine, position: int) -> int | None:
    """The number of `position` among those of `parts`, from 0; None if it is none of them."""
    before = 0
    for part in parts(line):
        if contains(part, position):
            return before + (position - part.first) // part.stride
        before += part.count
    return None


def position(line: TallyLine, number: int) -> int:
    """The position in the order that is this one of `parts`."""
    for part in parts(line):
        if number < part.count:
            break
        number -= part.count
    return part.first + part.stride * number


def contains(part: Progression, position: int) -> bool:
    """Whether `position` is one of the part's."""
    away, off = divmod(position - part.first, part.stride)
    return off == 0 and 0 <= away < part.count


def difference(line: TallyLine) -> Digest:
    """The digest of what a line accounts for minus the expected one. Only of all ranks, the sums of indices matter."""
    if line.drawn_digest:
        return line.accounted_digest - line.of_drawn
    if line.rank != "all":
        return line.accounted_digest - _of_positions(line.run, *line.shard.progressions)
    shard = line.shard
    if shard.end is not None:  # then indices take their time: a garbled end is found by the positions
        of_positions = line.accounted_digest - _of_everything(line.run, shard)
        if any(of_positions.of_positions):
            return of_positions
    if line.order in ("sequential", DRAWN):  # the same for every seed and in every epoch: computed once
        shard = replace(shard, epoch=1, seed=0)
    return line.accounted_digest - _of_all_ranks(line.run, shard)


def has_other_positions(line: TallyLine) -> bool:
    """Whether a line accounts for other positions than its shard's, whichever samples are there."""
    if line.drawn_digest:
        return any(difference(line).of_positions)
    shard = line.shard
    whole = _of_everything(line.run, shard) if line.rank == "all" else _of_positions(line.run, *shard.progressions)
    return any((line.accounted_digest - whole).of_positions)


def carried(line: TallyLine) -> Digest:
    """The samples that earlier worlds consumed before `start`: positions alone, as indices have no closed form."""
    return _of_positions(line.run, Progression(0, 1, line.start))


def explain(line: TallyLine, found: Digest) -> list[Stretch] | None:
    """The lost and duplicated positions of a difference; None if there are too many to name."""
    if not any(found.of_positions):
        return []
    return decoder.explain(found, parts(line)[0], line.n, digest.base(line.run)) if CAN_NAME else None


def of_samples(line: TallyLine, indices: tuple[int, ...]) -> Digest:
    """Digest of the positions of samples."""
    return _of_positions(line.run, *(Progression(each, 1, 1) for each in positions(line, indices)))


def positions(line: TallyLine, indices: tuple[int, ...]) -> list[int]:
    """The positions of samples in the line's order."""
    return list(line.shard.positions_of(np.array(indices, dtype=np.int64)).tolist())


def samples(line: TallyLine, positions: list[int]) -> list[int]:
    """The sample indices at `positions`."""
    return list(line.shard.samples_at(np.array(positions, dtype=np.int64)).tolist())


def is_right(line: TallyLine) -> bool:
    """Whether a rank's line reports no fault and its numbers and digest are the expected ones."""
    if line.rank == "all" or line.lost != 0 or line.duplicated != 0 or line.dropped:
        return False
    if line.drawn_digest:
        return line.expected == line.consumed == size(line) and line.digest == line.drawn_digest
    samples, positions = _of_rank(line.run, line.n, line.start, line.end, line.rank, line.world, line.contract)
    return line.expected == line.consumed == samples and digest.pack(line.digest).startswith(positions)


def doubtful(groups: Iterable[Lines]) -> list[TallyLine]:
    """The lines of ranks that are not plain, or whose numbers or digest are not the expected ones; by rank."""
    lines = [line for each in groups for line in each.others if line.rank != "all"]
    for each in groups:
        shard = replace(each.first.shard, rank=0, order="sequential", seed=0, epoch=1)
        found, ranks = each.plain_numbers[:, : 2 + digest.OF_POSITIONS], each.plain_ranks
        wrong = (found != _of_ranks(each.first.run, shard, ranks.tobytes())).any(axis=1)
        lines += [line for rank in ranks[wrong].tolist() if (line := each.line(rank))]
    return sorted(lines, key=attrgetter("rank"))


def sum_of_plain(groups: Iterable[Lines]) -> list[int]:
    """The sums of the numbers of plain lines: expected, consumed, and each word of the digest."""
    return [sum(map(exact_sum, column)) for column in zip(*(each.plain_numbers.T for each in groups), strict=True)]


@lru_cache(maxsize=1 << 14)  # a rank's positions are the same in every epoch
def _of_rank(
    run: str, n: int, start: int, end: int | None, rank: int, world: int, contract: Contract
) -> tuple[int, bytes]:
    """A rank's number of samples, and the beginning of its packed digest."""
    shard = Shard(n=n, rank=rank, world=world, contract=contract, start=start, end=end)
    words = _of_positions(run, *shard.progressions).packed
    return shard.size, words[: 8 * digest.OF_POSITIONS]


@lru_cache(maxsize=2)  # as many phases may take turns
def _of_ranks(run: str, shard: Shard, packed: bytes) -> Words:
    """For each rank a row: twice its number of samples, and the words of its positions."""
    ranks, g = np.frombuffer(packed, np.uint64), digest.base(run)
    found = np.empty((len(ranks), 2 + digest.OF_POSITIONS), dtype=np.uint64)
    left = (shard.n if shard.end is None else shard.end) - shard.start
    more = ranks < left % shard.world  # each of them has as many positions, and so has each of the others
    for own in (more, ~more):
        if not own.any():
            continue
        one = replace(shard, rank=int(ranks[own][0]))
        once, *again = one.progressions
        first = ranks[own] + np.uint64(shard.start)
        words = digest.of_progressions(first, once.stride, once.count, g)
        if again:
            first = (first + np.uint64(once.stride * once.count)) % np.uint64(shard.n)
            words = (words + digest.of_progressions(first, 1, 1, g)) % np.uint64(P)
        found[own, :2] = one.size
        found[own, 2:] = words
    return found


def _of_positions(run: str, *parts: Progression) -> Digest:
    return sum((digest.of_progression(part, digest.base(run)) for part in parts), Digest())


def _of_everything(run: str, shard: Shard) -> Digest:
    return sum((_of_positions(run, lap) * times for lap, times in shard.everything.items()), Digest())


@lru_cache(maxsize=8)
def _of_all_ranks(run: str, shard: Shard) -> Digest:
    return digest.of_all_ranks(shard, digest.base(run))
