"""A run of many pods and epochs, made without its logs: to read 100,000 lines takes longer than to test a page."""

from typing import Any

import pages
from bruteforce import RUN

from torchtally import events
from torchtally.proof import digest
from torchtally.proof.line import Rank, TallyLine
from torchtally.proof.shards import Shard
from torchtally.record.model import Snapshot
from torchtally.record.record import Record
from torchtally.verifier.line_groups import Lines
from torchtally.verifier.problem import Problem
from torchtally.verifier.verdict import Verdict

N = 1_000_000


def run(pods: int, epochs: int) -> tuple[Snapshot, Verdict]:
    """Each pod has restarted once, and in every third epoch half of the ranks are wrong."""
    groups = [_lines(pods, epoch, epochs) for epoch in range(1, epochs + 1)]
    problems = [Problem("…", f"train epoch {epoch}", frozenset([("train", epoch)])) for epoch in range(3, epochs, 3)]
    record = Record()
    for pod in map(_name, range(pods)):
        for line in _events(pod, pods, epochs).splitlines():
            record.add_line(pod, line)
    return record.snapshot, Verdict(RUN, groups=groups, problems=problems)


def _lines(pods: int, epoch: int, epochs: int) -> Lines:
    common = {"run": RUN, "attempt": 0, "task": "large", "phase": "train", "epoch": epoch, "plan": {"train": epochs}}
    common |= {"world": pods, "n": N, "start": 0, "batch": 32 * pods, "seed": 0, "contract": "exact"}
    common |= {"order": "feistel-1", "data": "sha256:0"}
    lines = Lines(TallyLine(**common, **_own(pods, "all", 0)))
    for rank in range(pods):
        lines.add(TallyLine(**common, **_own(pods, rank, 1 if epoch % 3 == 0 and rank % 2 else 0)))
    return lines


def _own(pods: int, rank: Rank, wrong: int) -> dict[str, Any]:
    size = N if rank == "all" else N // pods
    numbers = {"expected": size, "consumed": size, "lost": wrong, "duplicated": wrong}
    indices = {"lost_indices": (7,), "duplicated_indices": (8,)} if wrong else {}
    return {
        "pod": _name(0 if rank == "all" else rank),
        "rank": rank,
        "digest": _digest(pods, rank),
        **numbers,
        **indices,
    }


_known: dict[int | str, str] = {}


def _digest(pods: int, rank: int | str) -> str:
    if rank not in _known:
        shard = Shard(n=N, rank=0 if rank == "all" else rank, world=pods)
        parts = [*shard.everything] if rank == "all" else shard.progressions
        _known[rank] = str(digest.of_progression(parts[0], digest.base(RUN)))
    return _known[rank]


def _name(rank: int) -> str:
    return f"large-worker-{rank - 1}" if rank else "large-master-0"


def _events(pod: str, pods: int, epochs: int) -> str:
    text = ""
    for start in (0, 5000):
        started = events.Started(node_rank=0, min_pods=pods, max_pods=pods, processes=1, threads=1, **pages.VERSIONS)
        text += pages.event(start, started, pod, None)
        text += pages.event(start + 20, events.Rendezvous(pods=pods), pod, None)
        rank = 0 if pod == _name(0) else int(pod.rpartition("-")[2]) + 1
        text += pages.event(start + 40, events.Data(train=N, test=0, seconds=10), pod, rank)
        if rank == 0:
            begun = events.Begun(task="large", world=pods)
            again = events.Resumed(
                task="large", world=pods, checkpoint="/output/a", epoch=epochs // 2, position=7, discarded=9
            )
            text += pages.event(start + 50, again if start else begun, pod, rank, attempt=int(bool(start)))
            for epoch in range(epochs // 2 if start else 1, epochs + 1 if start else epochs // 2):
                result = events.Epoch(
                    epoch=epoch,
                    loss=1 / epoch,
                    test_loss=2 / epoch,
                    test_accuracy=1 - 1 / epoch,
                    tested=1,
                    samples_per_second=9e5,
                )
                text += pages.event(50 + 90 * epoch, result, pod, rank, attempt=int(bool(start)))
        ended = events.Ended(code=0, kind=None, cause=None)
        failed = events.Ended(
            code=203, kind="consequence", cause="large-worker-7 (rank 8) is gone: no heartbeat for 30 s"
        )
        text += pages.event(start + 4900, ended if start else failed, pod, None)
    return text
