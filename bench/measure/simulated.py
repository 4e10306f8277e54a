"""Simulated logs of a job that is too large for this machine: tally lines without a training.

Only each rank's sums of indices differ from a real job's, whose computation would take all of its samples. They are
random and add up to the sums of all ranks, so a verifier cannot detect the difference.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.proofs.last_line import summary_of
from torchtally.proof import digest
from torchtally.proof import line as tally_line
from torchtally.proof.digest import INDEX_POWERS, OF_POSITIONS, Digest
from torchtally.proof.line import TallyLine
from torchtally.proof.modular import P, exact_sum
from torchtally.proof.shards import Shard

LOGS = Path("build/bench/simulated")
_RUN = "5ca1ab1e0000"
_BATCH = 32
_DATA = "sha256:0000000000000000"


@dataclass(frozen=True)
class SimulatedJob:
    """A job with one rank in each pod, and `n` samples."""

    ranks: int
    epochs: int
    n: int

    @property
    def plan(self) -> dict[str, int]:
        return {"train": self.epochs}

    def shard(self, rank: int, epoch: int = 1) -> Shard:
        return Shard(n=self.n, rank=rank, world=self.ranks, order="feistel-1", epoch=epoch)


def lines(job: SimulatedJob) -> Iterator[tuple[int, str]]:
    """Ranks and lines in the order of a real log: epoch by epoch, each with all ranks' line at its end."""
    g = digest.base(_RUN)
    shards = [job.shard(rank) for rank in range(job.ranks)]
    words = np.array(
        [sum((digest.of_progression(part, g) for part in each.progressions), Digest()).words for each in shards]
    )
    indices = words[:, OF_POSITIONS:]
    draw = np.random.default_rng(0)
    known = PhaseState.beginning(n=job.n, contract="exact", order="feistel-1", data=_DATA)
    known = known.shared_out(1, 0, job.ranks)
    for epoch in range(1, job.epochs + 1):
        together = digest.of_all_ranks(job.shard(0, epoch), g)
        indices[:-1] = draw.integers(P, size=(job.ranks - 1, INDEX_POWERS))
        for power, (sum_, drawn) in enumerate(zip(together.words[OF_POSITIONS:], indices.T, strict=True)):
            indices[-1, power] = (sum_ - exact_sum(drawn[:-1].astype(np.uint64))) % P
        closed = _line(job, epoch, together)
        known = known.after(closed)
        for rank, (shard, own) in enumerate(zip(shards, words.astype(">i8"), strict=True)):
            consumed = {"expected": shard.size, "consumed": shard.size, "digest": digest.as_text(own.tobytes())}
            yield rank, tally_line.to_text(closed | {"pod": pod(rank), "rank": rank} | consumed)
        yield 0, tally_line.to_text(closed)
    common = {name: closed[name] for name in ("run", "attempt", "pod", "task", "plan", "seed")}
    run = Run(**common, rank=0, world=job.ranks, data=known.data)
    yield 0, tally_line.to_text(summary_of(run, {"train": known}, None, (), 0).printed())


def write(job: SimulatedJob, folder: Path, stream: Path) -> None:
    """Write a log for each pod to `folder`, and all lines, in the format of `kubectl logs --prefix`, to `stream`."""
    folder.mkdir(parents=True)
    logs: dict[int, list[str]] = defaultdict(list)
    with stream.open("w") as interleaved:
        for rank, text in lines(job):
            logs[rank].append(f"{text}\n")
            interleaved.write(f"[pod/{pod(rank)}/pytorch] {text}\n")
    for rank, own in logs.items():
        (folder / f"{pod(rank)}.log").write_text("".join(own))


def pod(rank: int) -> str:
    return f"large-worker-{rank - 1}" if rank else "large-master-0"


def _line(job: SimulatedJob, epoch: int, consumed: Digest) -> dict[str, Any]:
    """The line of all ranks together."""
    shard = job.shard(0, epoch)
    return TallyLine(
        run=_RUN,
        attempt=0,
        pod=pod(0),
        task="simulated",
        phase="train",
        epoch=epoch,
        plan=job.plan,
        rank="all",
        world=job.ranks,
        n=job.n,
        start=0,
        batch=_BATCH * job.ranks,
        seed=shard.seed,
        contract=shard.contract,
        order=str(shard.order),
        data=_DATA,
        expected=job.n,
        consumed=job.n,
        digest=str(consumed),
        lost=0,
        duplicated=0,
    ).printed()
