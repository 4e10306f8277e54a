"""What was consumed: recorded by the loop, combined over ranks, proved against the contract, one JSON line a rank.

The lines are the record that outlives the pods. docs/reference/line.md describes their format;
`scripts/verify_shards.py` checks them again with nothing but the numbers in them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from torchtally import events
from torchtally.accounting import cuda
from torchtally.errors import Unproven
from torchtally.proof import digest, shards, table
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Indices, Order, Progression

PREFIX = "TORCHTALLY "
VERSION = 2
_NAMED = 8  # lost and doubled samples that a line names: enough to look one up, and it stays under 1 KB
# Indices that enter the digest at a time; where a GPU has them it is waited for then.
_FLUSH, _FLUSH_ON_GPU = 1 << 14, 1 << 20
_COUNTABLE = 1 << 24  # samples; of so many all consumed indices are kept, to count what is wrong and cannot be named


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all lines of a rank have in common."""

    run: str
    attempt: int
    pod: str
    task: str
    plan: Mapping[str, int]  # phase -> epochs of it that this run will make
    rank: int
    world: int
    seed: int
    data: str  # the data's fingerprint

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

    def at(self, positions: Indices, seed: int) -> Indices:
        """The sample indices at these positions."""
        return positions if self.order == "sequential" else shards.permute(positions, self.n, seed, self.epoch)

    def of(self, indices: Indices, seed: int) -> Indices:
        """The positions of these sample indices."""
        return indices if self.order == "sequential" else shards.locate(indices, self.n, seed, self.epoch)


_NONE = torch.empty(0, dtype=torch.int64)


class Tally:
    """The record of what one rank consumed in one phase."""

    def __init__(self, run: Run, phase: Phase):
        self.run, self.phase = run, phase
        self.carried = Digest()  # of what all ranks consumed before phase.start
        self.count = 0
        self.outside: list[int] = []  # -1 is an index for a tensor, and no sample: the first few of such
        self._digest = Digest()
        self._pending: list[torch.Tensor] = []
        self._pending_count = 0
        self._kept: list[torch.Tensor] | None = [] if phase.n <= _COUNTABLE else None

    def record(self, indices: torch.Tensor) -> None:
        """Note `indices` (int64) as consumed: call it after the step that used them."""
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
        """All recorded indices, in the order of the steps; None where they are too many to keep."""
        self._flush()
        return None if self._kept is None else torch.cat(self._kept or [_NONE]).numpy(force=True)

    def restore(self, carried: Digest, consumed: Digest, count: int, outside: list[int]) -> None:
        """Go on from what all ranks had consumed before phase.start, and this rank from there on."""
        self.carried, self._digest, self.count, self.outside = carried, consumed, count, outside
        self._kept = None  # not all of it was seen here

    def _flush(self) -> None:
        if not self._pending:
            return
        consumed = torch.cat(self._pending)
        self._pending, self._pending_count = [], 0
        samples = (consumed >= 0) & (consumed < self.phase.n)
        self.outside = sorted([*self.outside, *consumed[~samples].tolist()])[:_NAMED]
        self._digest += self._digest_of(consumed[samples])
        self.count += len(consumed)
        if self._kept is not None:
            self._kept.append(consumed)

    def _digest_of(self, indices: torch.Tensor) -> Digest:
        phase, seed, g = self.phase, self.run.seed, digest.base(self.run.run)
        if indices.is_cuda:
            ordered = phase.order == "feistel-1"
            positions = cuda.locate(indices, phase.n, seed, phase.epoch) if ordered else indices
            return cuda.digest_of(positions, indices, g)
        words = indices.numpy()
        return digest.of(phase.of(words, seed), words, g)


@dataclass(frozen=True)
class Proof:
    """The lines of all ranks for one phase, the last one for all together."""

    lines: list[dict[str, Any]]

    @property
    def holds(self) -> bool:
        return not any(table.wrong(line) for line in self.lines)


def prove(tally: Tally, group: dist.ProcessGroup | None = None) -> Proof:
    """Combine all ranks' tallies of a phase; every rank prints its line and gets the same proof.

    A collective call over gloo, of all ranks or of those in `group`, where others consume nothing: digests are added
    up, whatever n is. Only where more is wrong than a digest can name, and n allows it, the samples are counted one by
    one.
    """
    run, phase, g = tally.run, tally.phase, digest.base(tally.run.run)
    parts = shards.progressions(phase.n, run.rank, run.world, phase.contract, phase.start)
    difference = tally.digest - sum((digest.expected(part, g) for part in parts), Digest())
    stretches = digest.explain(difference, parts[0], phase.n, g)
    wrong: Wrong | None
    if stretches is None and tally.kept is not None:
        wrong = _counted(_histogram(tally.kept, phase.n) - _expected_histogram(phase, run.seed, parts))
    else:
        wrong = _named(stretches, phase, run.seed)
    own = _line(run, phase, run.rank, parts, tally.count, tally.digest, wrong, tally.outside)
    emit(own)
    gathered: list[Any] = [None] * run.world
    dist.all_gather_object(gathered, (own, tally.digest, tally.outside), group)

    lines = [line for line, _, _ in gathered]
    together = sum((each for _, each, _ in gathered), tally.carried)
    parts = shards.whole(phase.n, run.world, phase.contract, phase.start)
    difference = together - digest.contract(phase.n, phase.epoch, phase.order, run.seed, parts, g)
    stretches = digest.explain(difference, Progression(0, 1, phase.n), phase.n, g)
    if stretches is None and tally.kept is not None:
        seen = torch.from_numpy(_histogram(tally.kept, phase.n))
        dist.all_reduce(seen, group=group)
        wrong = _counted(seen.numpy() - _expected_histogram(phase, run.seed, parts))
    else:
        # Positions that are right with indices that are wrong: the order's inverse is none, and nothing can be named.
        wrong = None if stretches == [] and any(difference.words) else _named(stretches, phase, run.seed)
    count = phase.start + sum(line["consumed"] for line in lines)
    outside = sorted(index for *_, some in gathered for index in some)
    first = replace(run, pod=lines[0]["pod"])  # rank 0 says it for all
    lines.append(_line(first, phase, "all", parts, count, together, wrong, outside))
    proof = Proof(lines)
    if run.rank == 0:
        emit(lines[-1])
        events.emit(events.Proved(phase=phase.name, epoch=phase.epoch, holds=proof.holds), run.source)
    return proof


def enforce(proof: Proof, mode: Literal["enforce", "report"], first: bool) -> None:
    """Print the table on rank 0, with its header if it is the `first`; raise Unproven on every rank if it fails."""
    everything = proof.lines[-1]
    if dist.get_rank() == 0:
        _write("\n".join(table.of_phase(proof.lines)[0 if first else 1 :]))
    if not proof.holds and mode == "enforce":
        lost, doubled = (table.shown(everything[name]) for name in ("lost", "doubled"))
        raise Unproven(
            f"{everything['phase']} epoch {everything['epoch']} is not proved: of {everything['expected']} samples "
            f"that the contract {everything['contract']} names, {lost} were lost and {doubled} doubled "
            f"(ranks whose shard was wrong: {_wrong_ranks(proof) or 'none'})"
        )


def emit(line: Mapping[str, Any]) -> None:
    """Print a tally line."""
    _write(PREFIX + json.dumps(line, separators=(",", ":")))


Wrong = list[tuple[int, Indices]]  # how many samples were consumed too often (lost: negative), and some of them


def _line(
    run: Run,
    phase: Phase,
    rank: int | str,
    parts: list[Progression],
    consumed: int,
    digest: Digest,
    wrong: Wrong | None,
    outside: list[int],
) -> dict[str, Any]:
    common = asdict(run) | {"rank": rank}
    line = {
        "v": VERSION,
        **{key: common[key] for key in ("run", "attempt", "pod", "task")},
        "phase": phase.name,
        "epoch": phase.epoch,
        **{key: common[key] for key in ("plan", "rank", "world")},
        "n": phase.n,
        "start": phase.start,
        "batch": phase.batch,
        "seed": run.seed,
        "contract": phase.contract,
        "order": phase.order,
        "data": run.data,
        "expected": sum(part.count for part in parts),
        "consumed": consumed,
        "digest": str(digest),
    }
    if wrong is None:
        return line | {"lost": None, "doubled": None}
    lost = [(-times, some) for times, some in wrong if times < 0]
    doubled = [(times, some) for times, some in wrong if times > 0]
    doubled.append((consumed - digest.words[0], np.array(outside, dtype=np.int64)))
    for name, found in (("lost", lost), ("doubled", doubled)):
        line[name] = sum(count for count, _ in found)
    if line["lost"] or line["doubled"]:
        for name, found in (("lost", lost), ("doubled", doubled)):
            line[f"{name}_indices"] = sorted({index for _, some in found for index in some.tolist()})[:_NAMED]
    return line


def _named(stretches: list[digest.Stretch] | None, phase: Phase, seed: int) -> Wrong | None:
    if stretches is None:
        return None
    return [
        (each.times * each.positions.count, phase.at(_positions(each.positions, _NAMED), seed)) for each in stretches
    ]


def _counted(difference: Indices) -> Wrong:
    lost, doubled = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    return [(int(difference[where].sum()), where[:_NAMED]) for where in (lost, doubled)]


def _expected_histogram(phase: Phase, seed: int, parts: list[Progression]) -> Indices:
    return _histogram(phase.at(np.concatenate([_positions(part) for part in parts]), seed), phase.n)


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
