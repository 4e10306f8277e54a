"""The logs of a job too large for this machine: tally lines without torch, and without training anything.

They are those of the true job but for how the sums of indices are shared out over the ranks: that would take all of its
samples. They are drawn, and add up to what all ranks together must have; no verifier can tell.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtally.proof import digest, run_summary, shards
from torchtally.proof.digest import INDEX_POWERS, OF_POSITIONS, Digest, P
from torchtally.proof.shards import Order

LOGS = Path("build/bench/simulated")
_RUN = "5ca1ab1e0000"
_ORDER: Order = "feistel-1"
_BATCH = 32


@dataclass(frozen=True)
class Job:
    """Ranks, one a pod, that pass over `n` samples."""

    ranks: int
    epochs: int
    n: int

    @property
    def plan(self) -> dict[str, int]:
        return {"train": self.epochs}


def lines(job: Job) -> Iterator[tuple[int, str]]:
    """Rank and line, in the order in which they would be printed: epoch by epoch, rank 0 with all ranks' at its end."""
    g = digest.base(_RUN)
    positions = [
        sum((digest.expected(part, g) for part in shards.progressions(job.n, rank, job.ranks, "exact")), Digest())
        for rank in range(job.ranks)
    ]
    draw = random.Random(0)
    closed = []
    for epoch in range(1, job.epochs + 1):
        together = digest.contract(job.n, epoch, _ORDER, 0, shards.whole(job.n, job.ranks, "exact"), g)
        drawn = [_of_indices(draw.randrange(P) for _ in range(INDEX_POWERS)) for _ in range(job.ranks - 1)]
        rest = _of_indices((together - sum(drawn, Digest())).words[OF_POSITIONS:])
        for rank, (own, indices) in enumerate(zip(positions, [*drawn, rest], strict=True)):
            yield rank, _text(_line(job, epoch, rank, shards.size(job.n, rank, job.ranks, "exact"), own + indices))
        closed.append(_line(job, epoch, "all", job.n, together))
        yield 0, _text(closed[-1])
    yield 0, _text(run_summary.line(closed, [(1, 0, job.ranks)], None, 0))


def write(job: Job, folder: Path, stream: Path) -> None:
    """A log for each pod in `folder`, and all of them as `kubectl logs --prefix` has them in `stream`."""
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


def _line(job: Job, epoch: int, rank: int | str, samples: int, consumed: Digest) -> dict[str, Any]:
    return {
        "v": 2,
        "run": _RUN,
        "attempt": 0,
        "pod": pod(rank if isinstance(rank, int) else 0),
        "task": "simulated",
        "phase": "train",
        "epoch": epoch,
        "plan": job.plan,
        "rank": rank,
        "world": job.ranks,
        "n": job.n,
        "start": 0,
        "batch": _BATCH * job.ranks,
        "seed": 0,
        "contract": "exact",
        "order": _ORDER,
        "data": "sha256:0000000000000000",
        "expected": samples,
        "consumed": samples,
        "digest": str(consumed),
        "lost": 0,
        "doubled": 0,
    }


def _text(values: dict[str, Any]) -> str:
    return "TORCHTALLY " + json.dumps(values, separators=(",", ":"))
