"""All ranks' tallies of a phase, combined and compared with the contract."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist

from torchtally import events, exchange, standard_output
from torchtally.accounting.ledger.tally import Tally
from torchtally.accounting.proofs import kept_lines
from torchtally.accounting.proofs.printing import Wrong, emit, line_of
from torchtally.errors import Refused, Unproven
from torchtally.proof import decoder, digest, table
from torchtally.proof.decoder import Stretch
from torchtally.proof.digest import Digest
from torchtally.proof.line import NAMED, TallyLine
from torchtally.proof.permutation import Indices
from torchtally.proof.shards import Progression, Shard


@dataclass(frozen=True)
class Proof:
    """The lines of all ranks for one phase, the last one for all together."""

    lines: list[dict[str, Any]]

    @property
    def holds(self) -> bool:
        return not any(table.wrong(line) for line in self.lines)


def prove(
    tally: Tally,
    group: dist.ProcessGroup | None = None,
    *,
    leads: bool = True,
    problem: str | None = None,
    told: Any = None,
    judge: Callable[[list[Any]], str | None] = lambda told: None,
) -> Proof:
    """Combine all ranks' tallies of a phase; every rank prints its line and gets the same proof.

    A collective call over gloo, of all ranks or of those in `group`, where others consume nothing: digests are added
    up, whatever n is. Only where more is wrong than a digest can name, and n allows it, the samples are counted one by
    one. Of peers, which consume the same samples, one `leads`: it prints for all.

    Raises Unproven on every rank if peers have consumed different samples, and Refused if
    a rank has a `problem`, for which nothing is proved, or they `judge` so by what all have `told` each other.
    """
    run, shard, g = tally.run, tally.shard, digest.base(tally.run.run)
    size, due = tally.expected
    difference = tally.digest + tally.dropped - due
    everything = Progression(0, 1, shard.n)
    in_order = shard.progressions[0] if tally.drawn is None else everything
    stretches = decoder.explain(difference, in_order, shard.n, g)
    wrong: Wrong | None
    if stretches is None and tally.kept is not None:
        wrong = _counted(_histogram(tally.kept, shard.n) - _expected_histogram(tally))
    else:
        wrong = _named(stretches, shard)
    of_draws = None if tally.drawn is None else due
    line = line_of(
        tally, run.rank, run.pod, size, tally.count, tally.digest, tally.dropped, of_draws, wrong, tally.outside
    )
    own = _Own(
        line=line,
        digest=tally.digest,
        carried=tally.carried,
        outside=tally.outside,
        dropped=tally.dropped,
        drawn=due,
        carried_dropped=tally.carried_dropped,
        problem=problem,
        told=told,
    )
    if leads:
        emit(line)
    gathered = [(leader, _Own.of(values)) for leader, values in exchange.all_gather([leads, asdict(own)], group)]
    if problems := [each.problem for _, each in gathered if each.problem]:
        raise Refused(problems[0])
    of_ranks: list[_Own] = sorted((each for leader, each in gathered if leader), key=lambda each: each.line["rank"])
    _compare_peers(tally, of_ranks, [each for _, each in gathered])
    if sentence := judge([each.told for _, each in gathered]):
        raise Refused(sentence)

    carried_dropped = sum((each.carried_dropped for each in of_ranks), Digest())
    dropped = sum((each.dropped for each in of_ranks), carried_dropped)
    together = sum((each.digest + each.carried for each in of_ranks), Digest()) - carried_dropped
    if tally.drawn is None or (shard.contract == "exact" and shard.end is None):
        expected, of_draws, of_all = shard.start + shard.total, None, digest.of_all_ranks(shard, g)
    else:  # nothing but the draws tells
        expected = sum(each.line["expected"] for each in of_ranks)
        of_draws = of_all = sum((each.drawn for each in of_ranks), Digest())
    difference = together + dropped - of_all
    stretches = decoder.explain(difference, everything, shard.n, g)
    if stretches is None and tally.kept is not None:  # of a whole epoch: the shards are all of it
        more = torch.from_numpy((_histogram(tally.kept, shard.n) - _expected_histogram(tally)) * leads)
        dist.all_reduce(more, group=group)
        wrong = _counted(more.numpy())
    else:
        # Right positions with wrong indices: the order's inverse is broken, so that nothing can be named.
        wrong = None if stretches == [] and any(difference.words) else _named(stretches, shard)
    ranks = [each.line for each in of_ranks]
    consumed = shard.start + sum(line["consumed"] for line in ranks) - carried_dropped.words[0]
    outside = sorted(index for each in of_ranks for index in each.outside)
    pod = ranks[0]["pod"]
    proof = Proof([*ranks, line_of(tally, "all", pod, expected, consumed, together, dropped, of_draws, wrong, outside)])
    if run.rank == 0 and leads:
        emit(proof.lines[-1])
        kept_lines.add(proof.lines)
        events.emit(events.Proved(phase=tally.phase.name, epoch=shard.epoch, holds=proof.holds), run.source)
    if not proof.holds:  # a rank that raises ends all others: rank 0 has printed by then
        dist.barrier(group)
    return proof


@dataclass(frozen=True, kw_only=True)
class _Own:
    """What a rank tells the others: its line, and its tally's numbers."""

    line: dict[str, Any]
    digest: Digest
    carried: Digest
    outside: list[int]
    dropped: Digest
    drawn: Digest
    carried_dropped: Digest
    problem: str | None
    told: Any

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From JSON."""
        digests = ("digest", "carried", "dropped", "drawn", "carried_dropped")
        found = {name: Digest(tuple(values[name]["words"])) for name in digests}
        return cls(**values | found)


def _compare_peers(tally: Tally, leaders: list[_Own], everyone: list[_Own]) -> None:
    of_rank = {each.line["rank"]: each for each in leaders}
    for each in everyone:
        leader = of_rank[each.line["rank"]]
        if (each.digest, each.dropped, each.line["consumed"]) != (
            leader.digest,
            leader.dropped,
            leader.line["consumed"],
        ):
            raise Unproven(
                f"{tally.phase.name} epoch {tally.phase.epoch} is not proved: {each.line['pod']} and "
                f"{leader.line['pod']} are data-parallel rank {each.line['rank']} and have consumed different samples"
            )


def enforce(proof: Proof, first: bool) -> None:
    """Print the table on rank 0, with its header if it is the `first`; raise Unproven on every rank if it fails."""
    everything = proof.lines[-1]
    if dist.get_rank() == 0:
        text = table.of_phase(proof.lines, standard_output.encoding())[0 if first else 1 :]
        if proof.holds and "mixture" in everything:
            text += [table.under(sentence) for sentence in TallyLine.parse(everything).sources]
        standard_output.write("\n".join(text))
    if not proof.holds:
        lost, duplicated = (table.shown(everything[name]) for name in ("lost", "duplicated"))
        ranks = ", ".join(str(line["rank"]) for line in proof.lines[:-1] if table.wrong(line))
        raise Unproven(
            f"{everything['phase']} epoch {everything['epoch']} is not proved: of {everything['expected']} samples "
            f"that the contract {everything['contract']} names, {lost} were lost and {duplicated} duplicated "
            f"(ranks whose shard was wrong: {ranks or 'none'})"
        )


def _named(stretches: list[Stretch] | None, shard: Shard) -> Wrong | None:
    if stretches is None:
        return None
    return [
        (each.times * each.positions.count, shard.samples_at(_positions(each.positions, NAMED))) for each in stretches
    ]


def _counted(difference: Indices) -> Wrong:
    lost, duplicated = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    return [(int(difference[where].sum()), where[:NAMED]) for where in (lost, duplicated)]


def _expected_histogram(tally: Tally) -> Indices:
    shard, drawn = tally.shard, tally.drawn
    if drawn is None:
        drawn = shard.samples_at(np.concatenate([_positions(part) for part in shard.progressions]))
    return _histogram(drawn, shard.n)


def _positions(part: Progression, most: int | None = None) -> Indices:
    return part.first + part.stride * np.arange(part.count if most is None else min(part.count, most), dtype=np.int64)


def _histogram(indices: Indices, n: int) -> Indices:
    return np.bincount(indices[(indices >= 0) & (indices < n)], minlength=n)
