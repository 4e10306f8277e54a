"""A check of all pods before the first step: whether each computes and reaches the others as fast as they do.

An all-reduce takes all ranks as long as the slowest, so it cannot tell whose link is slow. For that, pods exchange data
in pairs, in a few rounds: a pod's link is as good as its best pair.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import events, exchange
from torchtally.distributed import own_group
from torchtally.environment import Process, preflight_mode, variable
from torchtally.errors import Refused
from torchtally.log import log

SHARE = 0.5  # of the median of the other pods: whatever is below it is slow
LATENCY = 0.001  # seconds: what is faster is never slow
_ROUNDS = 3  # of pairs
_SMALL, _LARGE = 1 << 16, 1 << 22  # bytes of an exchange; the large one only over a link that is fast enough
_FAST = 0.02  # seconds that the small one may take for that
_TIMES, _ANSWERS = 3, 20  # of a large one and of a small one, of which the fastest counts
_SIDE = {"cpu": 1024, "cuda": 8192}  # of the matrices
_done = False


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A pod. Without others, it has no link."""

    pod: str
    node: str | None
    matrix: float  # floating-point operations a second, of its slowest rank
    bandwidth: float | None  # bytes a second in each direction
    latency: float | None  # seconds of a message and its answer

    @property
    def where(self) -> str:
        return f"{self.pod} on node {self.node}" if self.node else self.pod


def run(process: Process, device: torch.device) -> None:
    """Check the pods, once in a process, if the environment asks for it. A collective call of all ranks.

    Raises Refused on every rank if a pod is slow and the environment says so.
    """
    global _done
    mode = preflight_mode(os.environ)
    if not mode or _done:
        return
    _done = True
    group = own_group.of_all()
    places = exchange.all_gather([process.pod, variable("TORCHTALLY_NODE"), process.local_rank], group)
    matrix = _matrix(device)
    latency, bandwidth = _all_reduce(device, None if device.type == "cuda" else group)
    firsts = [rank for rank, (_, _, local_rank) in enumerate(places) if local_rank == 0]
    link = _link(process.rank, firsts, group) if process.rank in firsts else (None, None)
    found = exchange.all_gather([matrix, *link], group)
    pods = [
        Measured(
            pod=places[rank][0],
            node=places[rank][1],
            matrix=min(own[0] for own, place in zip(found, places, strict=True) if place[0] == places[rank][0]),
            bandwidth=found[rank][1],
            latency=found[rank][2],
        )
        for rank in firsts
    ]
    slow = {each.pod: sentence for each in pods if (sentence := _slow(each, [one for one in pods if one is not each]))}
    if process.local_rank == 0:
        own = next(each for each in pods if each.pod == process.pod)
        event = events.Preflight(
            node=own.node,
            matrix=own.matrix,
            bandwidth=own.bandwidth,
            latency=own.latency,
            all_reduce_bandwidth=bandwidth,
            all_reduce_latency=latency,
            slow=slow.get(own.pod),
        )
        events.emit(event, events.Source(pod=process.pod, rank=process.rank))
    if process.rank == 0:
        for sentence in slow.values():
            log.warning(f"preflight: {sentence}")
    if slow and mode == "refuse":
        raise Refused(
            f"preflight: {'; '.join(slow.values())}: TORCHTALLY_PREFLIGHT=refuse does not start with it; keep the job "
            "off this node, as by affinity, or choose report"
        )


def _slow(pod: Measured, others: Sequence[Measured]) -> str | None:
    """What is slow in a pod, as a sentence."""
    if not others:
        return None
    than = "and the median of the other pods is"
    usual = statistics.median(each.matrix for each in others)
    if pod.matrix < SHARE * usual:
        return f"{pod.where} computes {pod.matrix / 1e9:.3g} GFLOP/s, {than} {usual / 1e9:.3g}"
    if pod.bandwidth is None or pod.latency is None:
        return None
    usual = statistics.median(each.bandwidth or 0.0 for each in others)
    if pod.bandwidth < SHARE * usual:
        return f"{pod.where} exchanges {pod.bandwidth / 1e6:.3g} MB/s, {than} {usual / 1e6:.3g}"
    usual = statistics.median(each.latency or 0.0 for each in others)
    if pod.latency >= LATENCY and SHARE * pod.latency > usual:
        return f"{pod.where} has its messages answered in {1000 * pod.latency:.3g} ms, {than} {1000 * usual:.3g}"
    return None


def _matrix(device: torch.device) -> float:
    """Floating-point operations a second of a matrix product."""
    side = _SIDE.get(device.type, _SIDE["cpu"])
    one = torch.ones(side, side, device=device)
    result = torch.empty_like(one)

    def multiply() -> None:
        torch.mm(one, one, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()  # which loads libraries
    return 2.0 * side**3 / _fastest(multiply)


def _all_reduce(device: torch.device, group: dist.ProcessGroup | None) -> tuple[float | None, float | None]:
    """Seconds of the smallest all-reduce of all ranks, and bytes a second of a large one."""
    if dist.get_world_size(group) == 1:
        return None, None

    def reduce(data: Tensor) -> None:
        dist.all_reduce(data, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    one, small = torch.zeros(1, device=device), torch.zeros(_SMALL // 4, device=device)
    reduce(one)  # which connects the ranks
    latency, seconds, size = _fastest(lambda: reduce(one), _ANSWERS), _fastest(lambda: reduce(small)), _SMALL
    agreed = torch.tensor([seconds], device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MAX, group=group)
    if agreed.item() < _FAST:
        large, size = torch.zeros(_LARGE // 4, device=device), _LARGE
        seconds = _fastest(lambda: reduce(large))
    return latency, size / seconds


def _link(rank: int, firsts: Sequence[int], group: dist.ProcessGroup) -> tuple[float | None, float | None]:
    """Bytes a second and seconds of a message and its answer, with the best of some other pods."""
    found = [_pair(rank, other, group) for other in _partners(rank, firsts)]
    if not found:
        return None, None
    return max(bandwidth for bandwidth, _ in found), min(latency for _, latency in found)


def _partners(rank: int, ranks: Sequence[int]) -> Iterator[int]:
    """Who is paired with a rank, round by round: as teams are in a tournament."""
    fixed, *circle = [*ranks, -1] if len(ranks) % 2 else ranks  # -1: nobody
    for turn in range(min(_ROUNDS, len(circle))):
        row = [fixed, *circle[turn:], *circle[:turn]]
        other = row[len(row) - 1 - row.index(rank)]
        if other >= 0:
            yield other


def _pair(rank: int, other: int, group: dist.ProcessGroup) -> tuple[float, float]:
    """Bandwidth and latency between two ranks, which both call this."""

    def swap(own: Tensor, theirs: Tensor) -> None:
        works = [dist.isend(own, other, group=group), dist.irecv(theirs, other, group=group)]
        for work in works:
            assert work is not None
            work.wait()

    def of(size: int) -> Callable[[], None]:
        own, theirs = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        return lambda: swap(own, theirs)

    def agreed(seconds: float) -> float:
        own, theirs = torch.tensor([seconds]), torch.empty(1)
        swap(own, theirs)
        return max(own.item(), theirs.item())

    of(1)()  # they are connected, and both here
    latency, seconds, size = _fastest(of(1), _ANSWERS), _fastest(of(_SMALL)), _SMALL
    if agreed(seconds) < _FAST:
        seconds, size = _fastest(of(_LARGE)), _LARGE
    return size / agreed(seconds), agreed(latency)


def _fastest(act: Callable[[], None], times: int = _TIMES) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
