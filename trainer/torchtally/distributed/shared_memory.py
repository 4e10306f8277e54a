"""The mean of the gradients of all ranks of one pod, in shared memory, bit for bit equal to gloo's all-reduce.

What else the ranks share in a step goes the same way: a collective call over loopback takes longer than a small step.

gloo's ring (gloo/allreduce.cc) divides a buffer into a chunk for each rank, and sums chunk c from rank c - 1 downwards,
around the ring, to rank c. Here rank c sums chunk c at once. The buffers are DDP's buckets. So a training has the same
weights in one pod and in several, unless pods sum in bfloat16.
"""

import mmap
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtally import exchange
from torchtally.distributed.process_group import COLLECTIVE_TIMEOUT
from torchtally.distributed.waiting import WAITED
from torchtally.errors import Lost

_SEGMENT = 1 << 20  # bytes: gloo's kMaxSegmentSize
_CACHE_LINE = 64  # bytes; no two ranks write to the same line
_TIMEOUT = COLLECTIVE_TIMEOUT.total_seconds()


def connect(local_world: int) -> "SharedGradients | None":
    """Connect the ranks of the process group. A collective call.

    Returns None for a single rank, for ranks in several pods, and on systems other than Linux.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1 or local_world < world or sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder, "rank")))
        listener.listen(world)
        listener.settimeout(_TIMEOUT)
        addresses = exchange.all_gather(listener.getsockname())
        after = {(rank + distance) % world: socket.socket(socket.AF_UNIX) for distance in _distances(world)}
        for other, link in after.items():
            link.connect(addresses[other])
            link.sendall(rank.to_bytes(4))
        accepted = [listener.accept()[0] for _ in after]
        known = {int.from_bytes(link.recv(4, socket.MSG_WAITALL)): link for link in accepted}
    before = {(rank - distance) % world: known[(rank - distance) % world] for distance in _distances(world)}
    for link in (*after.values(), *before.values()):
        link.settimeout(_TIMEOUT)
    return SharedGradients(rank, world, after, before)


class SharedGradients:
    """Gradients in shared memory, and the barrier of the ranks that sum them.

    It is a dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J.
    Parallel Program. 17, 1988): each rank sends a byte to the ranks at distance 1, 2, 4, ... after it, and waits for
    one from the ranks as far before it. `after` and `before` are the sockets to those ranks.
    """

    def __init__(
        self, rank: int, world: int, after: dict[int, socket.socket], before: dict[int, socket.socket]
    ) -> None:
        self._rank, self._world, self._after, self._before = rank, world, after, before

    def allocate(
        self,
        buckets: Sequence[Sequence[nn.Parameter]],
        statistics: Sequence[Tensor] = (),
        buffers: Sequence[Tensor] = (),
    ) -> None:
        """Allocate memory for the gradients of these parameters on the CPU, bucket by bucket. A collective call.

        `statistics`, of one type, are averaged as the gradients are: see running_stats.py. `buffers`, such as
        BatchNorm's, become rank 0's in each step, as DDP has them.
        """
        self._parameters, self._statistics = [each for bucket in buckets for each in bucket], statistics
        together = [*buckets, *([statistics] if statistics else [])]
        lengths = [sum(each.numel() for each in bucket) for bucket in together]
        types = [bucket[0].dtype for bucket in together]
        sizes = [_lines(length * kind.itemsize) for length, kind in zip(lengths, types, strict=True)]
        offsets = [sum(sizes[:number]) for number in range(len(sizes))]
        places = [*accumulate((_lines(each.nbytes) for each in buffers), initial=(self._world + 1) * sum(sizes))]
        memory = self._map(places[-1])

        def summands(part: int) -> list[Tensor]:
            return [
                torch.frombuffer(memory, dtype=kind, count=length, offset=part * sum(sizes) + offset)
                for kind, length, offset in zip(types, lengths, offsets, strict=True)
            ]

        *parts, means = [summands(part) for part in range(self._world + 1)]
        self._own, self._means = _views(together, parts[self._rank]), _views(together, means)
        ring = [parts[(self._rank - distance) % self._world] for distance in range(1, self._world + 1)]
        self._sums = [
            [_chunk(buffer, self._rank, self._world) for buffer in (*terms, mean)]
            for *terms, mean in zip(*ring, means, strict=True)
        ]
        self._buffers = [
            (each, torch.frombuffer(memory, dtype=each.dtype, count=each.numel(), offset=place).view_as(each))
            for each, place in zip(buffers, places[:-1], strict=True)
            if each.numel()
        ]

    @torch.no_grad()
    def average(self) -> None:
        """Replace each gradient and statistic by its mean over all ranks, and each buffer by rank 0's.

        A collective call. Raises Lost.
        """
        averaged = [*map(_gradient, self._parameters), *self._statistics]
        for each, own in zip(averaged, self._own, strict=True):
            torch.mul(each, 1 / self._world, out=own)  # DDP divides before gloo sums
        self._barrier()
        for first, second, *others, mean in self._sums:
            torch.add(first, second, out=mean)
            for each in others:
                mean += each
        if self._rank == 0:
            for buffer, shared in self._buffers:
                shared.copy_(buffer)
        self._barrier()
        for each, mean in zip(averaged, self._means, strict=True):
            each.copy_(mean)
        if self._rank != 0:
            for buffer, shared in self._buffers:
                buffer.copy_(shared)

    def _map(self, size: int) -> mmap.mmap:
        """Shared memory of `size` bytes. The kernel frees it when the last process ends."""
        before, after = (next(iter(links.values())) for links in (self._before, self._after))
        if self._rank == 0:
            memory = os.memfd_create("gradients")
            os.truncate(memory, size)
        else:
            _, (memory, *_), _, _ = socket.recv_fds(before, 1, 1)
        try:
            if self._rank + 1 < self._world:
                socket.send_fds(after, [b"\0"], [memory])
            return mmap.mmap(memory, size)
        finally:
            os.close(memory)

    def _barrier(self) -> None:
        """Wait until all ranks are here. Raises Lost."""
        began = time.perf_counter()
        for (after, to), (before, of) in zip(self._after.items(), self._before.items(), strict=True):
            try:
                to.send(b"\0")
            except OSError:
                raise _lost(after) from None
            try:
                received = of.recv(1)
            except TimeoutError:
                raise Lost(
                    f"rank {before} of this pod did not reach the sum of gradients within {_TIMEOUT:.0f} s"
                ) from None
            except OSError:
                received = b""
            if not received:
                raise _lost(before)
        WAITED.add(time.perf_counter() - began)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # the loss does not depend on it
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _lines(size: int) -> int:
    """Bytes of the cache lines that `size` bytes take."""
    return -(-size // _CACHE_LINE) * _CACHE_LINE


def _distances(world: int) -> list[int]:
    return [1 << each for each in range((world - 1).bit_length())]


def _views(buckets: Sequence[Sequence[Tensor]], buffers: list[Tensor]) -> list[Tensor]:
    """Views of the buffers with the parameters' shapes and strides."""
    return [
        view.as_strided(each.size(), torch.empty_like(each, device="meta").stride(), view.storage_offset())
        for bucket, buffer in zip(buckets, buffers, strict=True)
        for each, view in zip(bucket, buffer.split([each.numel() for each in bucket]), strict=True)
    ]


def _chunk(buffer: Tensor, rank: int, world: int) -> Tensor:
    """The elements of `buffer` that `rank` sums: gloo's segments, the same number for each rank."""
    segments = max(-(-buffer.nbytes // _SEGMENT), 2 * world)
    each = -(-segments // world)
    length = each * -(-buffer.nbytes // (each * world * buffer.element_size()))
    return buffer[rank * length : (rank + 1) * length]


def _lost(rank: int) -> Lost:
    return Lost(f"rank {rank} of this pod went away")
