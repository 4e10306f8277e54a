"""Simulated logs of a job that is too large for this machine: tally lines without a training.

Only each rank's sums of indices differ from a real job's, whose computation would take all of its samples. They are
random and add up to the sums of all ranks, so a verifier cannot detect the difference.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtally.proof import digest, run_summary
from torchtally.proof import line as tally_line
from torchtally.proof.digest import INDEX_POWERS, OF_POSITIONS, Digest
from torchtally.proof.line import Rank, TallyLine
from torchtally.proof.modular import P
from torchtally.proof.shards import Shard

LOGS = Path("build/bench/simulated")
_RUN = "5ca1ab1e0000"
_BATCH = 32


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
    positions = [
        sum((digest.of_progression(part, g) for part in job.shard(rank).progressions), Digest())
        for rank in range(job.ranks)
    ]
    draw = random.Random(0)
    closed = []
    for epoch in range(1, job.epochs + 1):
        together = digest.of_all_ranks(job.shard(0, epoch), g)
        drawn = [_of_indices(draw.randrange(P) for _ in range(INDEX_POWERS)) for _ in range(job.ranks - 1)]
        rest = _of_indices((together - sum(drawn, Digest())).words[OF_POSITIONS:])
        for rank, (own, indices) in enumerate(zip(positions, [*drawn, rest], strict=True)):
            yield rank, tally_line.to_text(_line(job, epoch, rank, job.shard(rank).size, own + indices))
        closed.append(_line(job, epoch, "all", job.n, together))
        yield 0, tally_line.to_text(closed[-1])
    yield 0, tally_line.to_text(run_summary.line(closed, [(1, 0, job.ranks)], None, 0))


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


def _of_indices(sums: Iterable[int]) -> Digest:
    return Digest((*[0] * OF_POSITIONS, *sums))


def _line(job: SimulatedJob, epoch: int, rank: Rank, samples: int, consumed: Digest) -> dict[str, Any]:
    shard = job.shard(0, epoch)
    return TallyLine(
        run=_RUN,
        attempt=0,
        pod=pod(0 if rank == "all" else rank),
        task="simulated",
        phase="train",
        epoch=epoch,
        plan=job.plan,
        rank=rank,
        world=job.ranks,
        n=job.n,
        start=0,
        batch=_BATCH * job.ranks,
        seed=shard.seed,
        contract=shard.contract,
        order=str(shard.order),
        data="sha256:0000000000000000",
        expected=samples,
        consumed=samples,
        digest=consumed.packed,
        lost=0,
        doubled=0,
    ).printed()
