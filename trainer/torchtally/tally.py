"""What was consumed: recorded by the loop, combined over ranks, proved against the contract, one JSON line a rank.

The lines are the record that outlives the pods. Their format is described in the README under "How to read a proof";
`scripts/verify_shards.py` checks them again with nothing but the numbers in them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from torchtally import shards, table
from torchtally.errors import Unproven
from torchtally.shards import Contract, Indices, Order

PREFIX = "TORCHTALLY "
VERSION = 1
_NAMED = 8  # lost and doubled samples that a line names: enough to look one up, and it stays under 1 KB


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


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pass over n samples."""

    name: str
    epoch: int
    n: int
    contract: Contract
    order: Order


class Tally:
    """The record of what one rank consumed in one phase."""

    def __init__(self, run: Run, phase: Phase):
        self.run, self.phase = run, phase
        self._batches: list[torch.Tensor] = []

    def record(self, indices: torch.Tensor) -> None:
        """Note `indices` (int64, on the CPU) as consumed: call it after the step that used them."""
        self._batches.append(indices)

    def consumed(self) -> Indices:
        """All recorded indices, in the order of the steps."""
        return torch.cat([torch.empty(0, dtype=torch.int64), *self._batches]).numpy()


@dataclass(frozen=True)
class Proof:
    """The lines of all ranks for one phase, the last one for all together."""

    lines: list[dict[str, Any]]

    @property
    def holds(self) -> bool:
        return not any(line["lost"] or line["doubled"] for line in self.lines)


def prove(tally: Tally) -> Proof:
    """Combine all ranks' tallies of a phase; every rank prints its line and gets the same proof.

    A collective call over gloo, O(n) in memory: a histogram of the samples finds those that no rank, or more than one,
    consumed, whichever sampler handed them out.
    """
    run, phase = tally.run, tally.phase
    consumed = tally.consumed()
    outside = consumed[(consumed < 0) | (consumed >= phase.n)]  # -1 is an index for a tensor, and no sample
    own = _line(run, phase, run.rank, _own_shard(run, phase), consumed)
    emit(own)
    gathered: list[Any] = [None] * run.world
    dist.all_gather_object(gathered, (own, outside))
    lines = [line for line, _ in gathered]

    seen = torch.from_numpy(_histogram(consumed, phase.n))
    dist.all_reduce(seen)
    together = np.concatenate([np.repeat(np.arange(phase.n), seen.numpy()), *(others for _, others in gathered)])
    everything = _line(run, phase, "all", _whole_contract(run, phase), together)
    if run.rank == 0:
        emit(everything)
    return Proof([*lines, everything])


def enforce(proof: Proof, mode: Literal["enforce", "report"], first: bool) -> None:
    """Print the table on rank 0, with its header if it is the `first`; raise Unproven on every rank if it fails."""
    everything = proof.lines[-1]
    if dist.get_rank() == 0:
        _write("\n".join(table.of_phase(proof.lines)[0 if first else 1 :]))
    if not proof.holds and mode == "enforce":
        raise Unproven(
            f"{everything['phase']} epoch {everything['epoch']} is not proved: of {everything['expected']} samples "
            f"that the contract {everything['contract']} names, {everything['lost']} were lost and "
            f"{everything['doubled']} doubled (ranks whose shard was wrong: {_wrong_ranks(proof) or 'none'})"
        )


def emit(line: Mapping[str, Any]) -> None:
    """Print a tally line."""
    _write(PREFIX + json.dumps(line, separators=(",", ":")))


def _line(run: Run, phase: Phase, rank: int | str, expected: Indices, consumed: Indices) -> dict[str, Any]:
    difference = _histogram(consumed, phase.n) - _histogram(expected, phase.n)
    lost, doubled = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    outside = consumed[(consumed < 0) | (consumed >= phase.n)]
    common = asdict(run) | {"rank": rank}
    line = {
        "v": VERSION,
        **{key: common[key] for key in ("run", "attempt", "pod", "task")},
        "phase": phase.name,
        "epoch": phase.epoch,
        **{key: common[key] for key in ("plan", "rank", "world")},
        "n": phase.n,
        "seed": run.seed,
        "contract": phase.contract,
        "order": phase.order,
        "data": run.data,
        "expected": len(expected),
        "consumed": len(consumed),
        "digest": f"{shards.digest(consumed):016x}",
        "lost": int(-difference[lost].sum()),
        "doubled": int(difference[doubled].sum()) + len(outside),
    }
    if line["lost"] or line["doubled"]:
        line["lost_indices"] = lost[:_NAMED].tolist()
        line["doubled_indices"] = sorted({*doubled[:_NAMED].tolist(), *outside.tolist()})[:_NAMED]
    return line


def _own_shard(run: Run, phase: Phase) -> Indices:
    return shards.indices(phase.n, run.rank, run.world, phase.contract, phase.order, run.seed, phase.epoch)


def _whole_contract(run: Run, phase: Phase) -> Indices:
    positions = np.arange(shards.total(phase.n, run.world, phase.contract), dtype=np.int64) % phase.n
    return positions if phase.order == "sequential" else shards.permute(positions, phase.n, run.seed, phase.epoch)


def _histogram(indices: Indices, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.bincount(indices[(indices >= 0) & (indices < n)], minlength=n)


def _wrong_ranks(proof: Proof) -> str:
    return ", ".join(str(line["rank"]) for line in proof.lines[:-1] if line["lost"] or line["doubled"])


def _write(text: str) -> None:
    # One write for text and newline together: processes of a pod share its log, and print() makes two.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
