"""What was consumed: recorded by the loop, combined over ranks, proved against the contract, one JSON line a rank.

The lines are the record that outlives the pods. docs/reference/line.md describes them, and proof/line.py has their
format. `scripts/verify_shards.py` checks them again from the numbers in them alone.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from torchtally import events
from torchtally.accounting import cuda
from torchtally.errors import Refused, Unproven
from torchtally.proof import decoder, digest, table
from torchtally.proof import line as lines
from torchtally.proof.contract import Contract
from torchtally.proof.decoder import Stretch
from torchtally.proof.digest import Digest
from torchtally.proof.line import NAMED, Rank, TallyLine
from torchtally.proof.mixture import Mix
from torchtally.proof.order import Order, sizes_of
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Progression, Shard

# Indices that enter the digest at a time. On a GPU, this waits for it.
_FLUSH, _FLUSH_ON_GPU = 1 << 15, 1 << 20
_COUNTABLE = 1 << 24  # samples; up to so many all consumed indices are kept, to count faults that cannot be named


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all lines of a rank have in common: their fields, by their names."""

    run: str
    attempt: int
    pod: str
    task: str
    plan: Mapping[str, int]  # phase -> epochs of it that this run will make
    rank: int
    world: int
    seed: int
    data: str  # the data's fingerprint
    began: int = 0  # when rank 0 began the attempt: milliseconds since 1970

    @property
    def source(self) -> events.Source:
        """This process, as its events name it: by its rank among all, of which some may not train."""
        return events.Source(pod=self.pod, rank=dist.get_rank(), run=self.run, attempt=self.attempt)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pass over n samples, from position `start` of their order on."""

    name: str
    epoch: int
    n: int
    batch: int  # samples a step, of all ranks together
    contract: Contract
    order: Order
    start: int = 0
    end: int | None = None  # the position before which it ends, if not that of the order
    mix: Mix | None = None  # of a mixture of datasets

    def shard(self, run: Run) -> Shard:
        """What the rank of `run` consumes in this phase."""
        return Shard(
            n=self.n,
            rank=run.rank,
            world=run.world,
            contract=self.contract,
            order=self.order,
            seed=run.seed,
            epoch=self.epoch,
            start=self.start,
            end=self.end,
        )


_NONE = torch.empty(0, dtype=torch.int64)


class Tally:
    """The record of what one rank consumed in one phase."""

    def __init__(self, run: Run, phase: Phase):
        self.run, self.phase, self.shard = run, phase, phase.shard(run)
        # This rank's share of the digest of what was consumed before phase.start: the shares of all ranks add up.
        self.carried = Digest()
        self.dropped = Digest()  # what the program's collate_fn has dropped
        self.carried_dropped = Digest()  # this rank's share of what was dropped before phase.start, a part of `carried`
        self.commits: int | None = None  # of the loop, if it makes any
        self.count = 0
        self.outside: list[int] = []  # -1 is an index for a tensor, and no sample: the first few of such
        self._digest = Digest()
        self._pending: list[torch.Tensor] = []
        self._pending_count = 0
        self._kept: list[torch.Tensor] | None = [] if phase.n <= _COUNTABLE else None

    def record(self, indices: torch.Tensor, dropped: Indices | None = None) -> None:
        """Note `indices` (int64) as consumed, others as dropped: call it after the step that used them."""
        if dropped is not None:
            self._flush()
            self.dropped += self.digest_of(torch.from_numpy(dropped))
            if self._kept is not None:
                self._kept.append(torch.from_numpy(dropped))
        self._pending.append(indices)
        self._pending_count += indices.numel()
        if self._pending_count >= (_FLUSH_ON_GPU if indices.is_cuda else _FLUSH):
            self._flush()

    @property
    def digest(self) -> Digest:
        """Of all that was recorded."""
        self._flush()
        return self._digest

    @property
    def kept(self) -> Indices | None:
        """All recorded indices, also of what was dropped; None where they are too many to keep."""
        self._flush()
        return None if self._kept is None else torch.cat(self._kept or [_NONE]).numpy(force=True)

    def end_at(self, position: int) -> None:
        """End the phase before a position of its order."""
        self.phase = replace(self.phase, end=position)
        self.shard = self.phase.shard(self.run)

    def restore(self, carried: Digest, consumed: Digest, count: int, outside: list[int]) -> None:
        """Go on from a share of what was consumed before phase.start, and from what this rank consumed after it."""
        self.carried, self._digest, self.count, self.outside = carried, consumed, count, outside
        self._kept = None  # not all of it was seen here

    def _flush(self) -> None:
        if not self._pending:
            return
        consumed = torch.cat(self._pending)
        self._pending, self._pending_count = [], 0
        self.count += len(consumed)
        samples = consumed
        if len(consumed) and not 0 <= int(consumed.min()) <= int(consumed.max()) < self.phase.n:
            inside = (consumed >= 0) & (consumed < self.phase.n)
            self.outside = sorted([*self.outside, *consumed[~inside].tolist()])[:NAMED]
            samples = consumed[inside]
        self._digest += self.digest_of(samples)
        if self._kept is not None:
            self._kept.append(consumed)

    def digest_of(self, indices: torch.Tensor) -> Digest:
        """The digest of samples (int64) of the phase."""
        g = digest.base(self.run.run)
        if indices.is_cuda:
            return cuda.digest_of(cuda.positions_of(indices, self.shard), indices, g)
        words = indices.numpy()
        return digest.of_samples(self.shard.positions_of(words), words, g)


@dataclass(frozen=True)
class Proof:
    """The lines of all ranks for one phase, the last one for all together."""

    lines: list[dict[str, Any]]

    @property
    def holds(self) -> bool:
        return not any(table.wrong(line) for line in self.lines)


def prove(
    tally: Tally, group: dist.ProcessGroup | None = None, *, leads: bool = True, problem: str | None = None
) -> Proof:
    """Combine all ranks' tallies of a phase; every rank prints its line and gets the same proof.

    A collective call over gloo, of all ranks or of those in `group`, where others consume nothing: digests are added
    up, whatever n is. Only where more is wrong than a digest can name, and n allows it, the samples are counted one by
    one. Of peers, which consume the same samples, one `leads`: it prints for all.

    Raises Unproven on every rank if peers have consumed different samples, or the ranks' commits differ, and Refused if
    a rank has a `problem`, for which nothing is proved.
    """
    run, shard, g = tally.run, tally.shard, digest.base(tally.run.run)
    parts = shard.progressions
    difference = tally.digest + tally.dropped - sum((digest.of_progression(part, g) for part in parts), Digest())
    stretches = decoder.explain(difference, parts[0], shard.n, g)
    wrong: Wrong | None
    if stretches is None and tally.kept is not None:
        wrong = _counted(_histogram(tally.kept, shard.n) - _expected_histogram(shard, parts))
    else:
        wrong = _named(stretches, shard)
    dropped = tally.dropped
    line = _line(tally, run.rank, run.pod, shard.size, tally.count, tally.digest, dropped, wrong, tally.outside)
    own = _Own(line, tally, problem)
    if leads:
        emit(own.line)
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (leads, own), group)
    if problems := [each.problem for _, each in gathered if each.problem]:
        raise Refused(problems[0])
    of_ranks: list[_Own] = sorted((each for leader, each in gathered if leader), key=lambda each: each.line["rank"])
    _compare_peers(tally, of_ranks, [each for _, each in gathered])

    carried_dropped = sum((each.carried_dropped for each in of_ranks), Digest())
    dropped = sum((each.dropped for each in of_ranks), carried_dropped)
    together = sum((each.digest + each.carried for each in of_ranks), Digest()) - carried_dropped
    difference = together + dropped - digest.of_all_ranks(shard, g)
    stretches = decoder.explain(difference, Progression(0, 1, shard.n), shard.n, g)
    if stretches is None and tally.kept is not None:
        seen = torch.from_numpy(_histogram(tally.kept, shard.n) * leads)
        dist.all_reduce(seen, group=group)
        wrong = _counted(seen.numpy() - _expected_histogram(shard, shard.everything))
    else:
        # Right positions with wrong indices: the order's inverse is broken, so that nothing can be named.
        wrong = None if stretches == [] and any(difference.words) else _named(stretches, shard)
    ranks = [each.line for each in of_ranks]
    expected = shard.start + shard.total
    consumed = shard.start + sum(line["consumed"] for line in ranks) - carried_dropped.words[0]
    outside = sorted(index for each in of_ranks for index in each.outside)
    proof = Proof([*ranks, _line(tally, "all", ranks[0]["pod"], expected, consumed, together, dropped, wrong, outside)])
    if run.rank == 0 and leads:
        emit(proof.lines[-1])
        events.emit(events.Proved(phase=tally.phase.name, epoch=shard.epoch, holds=proof.holds), run.source)
    return proof


class _Own:
    """What a rank tells the others: its line, and its tally's numbers."""

    def __init__(self, line: dict[str, Any], tally: Tally, problem: str | None):
        self.line, self.digest, self.carried, self.outside = line, tally.digest, tally.carried, tally.outside
        self.dropped, self.carried_dropped = tally.dropped, tally.carried_dropped
        self.commits, self.problem = tally.commits, problem


def _compare_peers(tally: Tally, leaders: list[_Own], everyone: list[_Own]) -> None:
    known = {each.line["rank"]: each for each in leaders}
    commits = {each.commits for each in everyone}
    if len(commits) > 1:
        raise Unproven(
            f"{tally.phase.name} epoch {tally.phase.epoch} is not proved: the ranks have made different numbers of "
            f"commits: {', '.join(map(str, sorted(commits, key=str)))}"
        )
    for each in everyone:
        leader = known[each.line["rank"]]
        if (each.digest, each.dropped, each.line["consumed"]) != (
            leader.digest,
            leader.dropped,
            leader.line["consumed"],
        ):
            raise Unproven(
                f"{tally.phase.name} epoch {tally.phase.epoch} is not proved: {each.line['pod']} and "
                f"{leader.line['pod']} are data-parallel rank {each.line['rank']} and have consumed different samples"
            )


def enforce(proof: Proof, mode: Literal["enforce", "report"], first: bool) -> None:
    """Print the table on rank 0, with its header if it is the `first`; raise Unproven on every rank if it fails."""
    everything = proof.lines[-1]
    if dist.get_rank() == 0:
        text = table.of_phase(proof.lines)[0 if first else 1 :]
        if proof.holds and "mixture" in everything:
            text += [table.under(sentence) for sentence in TallyLine.parse(everything).sources]
        _write("\n".join(text))
    if not proof.holds and mode == "enforce":
        lost, doubled = (table.shown(everything[name]) for name in ("lost", "doubled"))
        raise Unproven(
            f"{everything['phase']} epoch {everything['epoch']} is not proved: of {everything['expected']} samples "
            f"that the contract {everything['contract']} names, {lost} were lost and {doubled} doubled "
            f"(ranks whose shard was wrong: {_wrong_ranks(proof) or 'none'})"
        )


def emit(line: Mapping[str, Any]) -> None:
    """Print a tally line."""
    _write(lines.to_text(line))


Wrong = list[tuple[int, Indices]]  # how many samples were consumed too often (lost: negative), and some of them


def _line(
    tally: Tally,
    rank: Rank,
    pod: str,
    expected: int,
    consumed: int,
    digest: Digest,
    dropped: Digest,
    wrong: Wrong | None,
    outside: list[int],
) -> dict[str, Any]:
    lost: Wrong = [(-times, some) for times, some in wrong or () if times < 0]
    doubled: Wrong = [(times, some) for times, some in wrong or () if times > 0]
    doubled.append((consumed - digest.words[0], np.array(outside, dtype=np.int64)))
    run, phase = tally.run, tally.phase
    return TallyLine(
        **{**asdict(run), "rank": rank, "pod": pod},
        phase=phase.name,
        epoch=phase.epoch,
        n=phase.n,
        start=phase.start,
        batch=phase.batch,
        contract=phase.contract,
        order=str(phase.order),
        sizes=sizes_of(phase.order) if rank == "all" else None,
        expected=expected,
        consumed=consumed,
        digest=digest.packed,
        dropped=dropped.words[0] or None,
        dropped_digest=dropped.packed if any(dropped.words) else None,
        lost=None if wrong is None else _samples(lost),
        doubled=None if wrong is None else _samples(doubled),
        lost_indices=_indices(lost),
        doubled_indices=_indices(doubled),
        commits=tally.commits,
        end=phase.end,
        mixture=phase.mix.counts(tally.shard) if phase.mix and rank == "all" else None,
    ).printed()


def _samples(wrong: Wrong) -> int:
    return sum(count for count, _ in wrong)


def _indices(wrong: Wrong) -> tuple[int, ...]:
    return tuple(sorted({index for _, some in wrong for index in some.tolist()})[:NAMED])


def _named(stretches: list[Stretch] | None, shard: Shard) -> Wrong | None:
    if stretches is None:
        return None
    return [
        (each.times * each.positions.count, shard.samples_at(_positions(each.positions, NAMED))) for each in stretches
    ]


def _counted(difference: Indices) -> Wrong:
    lost, doubled = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    return [(int(difference[where].sum()), where[:NAMED]) for where in (lost, doubled)]


def _expected_histogram(shard: Shard, parts: list[Progression]) -> Indices:
    return _histogram(shard.samples_at(np.concatenate([_positions(part) for part in parts])), shard.n)


def _positions(part: Progression, most: int | None = None) -> Indices:
    return part.first + part.stride * np.arange(part.count if most is None else min(part.count, most), dtype=np.int64)


def _histogram(indices: Indices, n: int) -> Indices:
    return np.bincount(indices[(indices >= 0) & (indices < n)], minlength=n)


def _wrong_ranks(proof: Proof) -> str:
    return ", ".join(str(line["rank"]) for line in proof.lines[:-1] if table.wrong(line))


def _write(text: str) -> None:
    # One write for text and newline together: processes of a pod share its log, and print() makes two.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
