"""The mean of all ranks' gradients where they are in one pod: in memory that they share, to the bit what gloo makes.

gloo's ring (gloo/allreduce.cc) cuts a buffer into a chunk for each rank, and adds chunk c up from rank c - 1 downwards,
round the ring, to rank c. Here rank c adds it up in one go. The buffers are DDP's buckets. So a training's weights do
not tell where its ranks ran, unless they were to sum in bfloat16 between pods.
"""

import mmap
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtally.distributed import handshake
from torchtally.errors import Lost

_SEGMENT = 1 << 20  # bytes: gloo's kMaxSegmentSize
_CACHE_LINE = 64  # bytes: no two ranks write to the same one
_PATIENCE = handshake.COLLECTIVE.total_seconds()


def shared(local_world: int) -> "Shared | None":
    """One for the ranks of the process group, if they are several, all in this pod, and its system can.

    A collective call.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1 or local_world < world or sys.platform != "linux":
        return None
    addresses: list[Any] = [None] * world
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder, "rank")))
        listener.listen(world)
        listener.settimeout(_PATIENCE)
        dist.all_gather_object(addresses, listener.getsockname())
        after = {(rank + distance) % world: socket.socket(socket.AF_UNIX) for distance in _distances(world)}
        for other, link in after.items():
            link.connect(addresses[other])
            link.sendall(rank.to_bytes(4))
        accepted = [listener.accept()[0] for _ in after]
        known = {int.from_bytes(link.recv(4, socket.MSG_WAITALL)): link for link in accepted}
    before = {(rank - distance) % world: known[(rank - distance) % world] for distance in _distances(world)}
    for link in (*after.values(), *before.values()):
        link.settimeout(_PATIENCE)
    return Shared(rank, world, after, before)


class Shared:
    """The memory, and how its ranks wait for each other.

    They do so by a dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
    Int. J. Parallel Program. 17, 1988): a byte to the rank at distance 1, 2, 4, ... and one from as far behind.
    `after` and `before` are the sockets to those ranks.
    """

    def __init__(
        self, rank: int, world: int, after: dict[int, socket.socket], before: dict[int, socket.socket]
    ) -> None:
        self._rank, self._world, self._after, self._before = rank, world, after, before
        self._parameters: list[nn.Parameter] = []

    def lay_out(self, buckets: Sequence[Sequence[nn.Parameter]]) -> None:
        """Make room for the gradients of these parameters on the CPU, bucket by bucket. A collective call."""
        lengths = [sum(each.numel() for each in bucket) for bucket in buckets]
        types = [bucket[0].dtype for bucket in buckets]
        sizes = [
            -(-length * kind.itemsize // _CACHE_LINE) * _CACHE_LINE for length, kind in zip(lengths, types, strict=True)
        ]
        begins = [sum(sizes[:number]) for number in range(len(sizes))]
        memory = self._allocated((self._world + 1) * sum(sizes))

        def buffers(part: int) -> list[Tensor]:
            return [
                torch.frombuffer(memory, dtype=kind, count=length, offset=part * sum(sizes) + begin)
                for kind, length, begin in zip(types, lengths, begins, strict=True)
            ]

        *parts, means = [buffers(part) for part in range(self._world + 1)]
        self._parameters = [each for bucket in buckets for each in bucket]
        self._own, self._means = _like(buckets, parts[self._rank]), _like(buckets, means)
        round_the_ring = [parts[(self._rank - distance) % self._world] for distance in range(1, self._world + 1)]
        self._sums = [
            [_chunk(buffer, self._rank, self._world) for buffer in (*of_ranks, mean)]
            for *of_ranks, mean in zip(*round_the_ring, means, strict=True)
        ]

    @torch.no_grad()
    def mean(self) -> None:
        """Make of each parameter's gradient the mean of all ranks'. A collective call; raises Lost."""
        for parameter, own in zip(self._parameters, self._own, strict=True):
            if parameter.grad is None:  # it had no part in the loss
                parameter.grad = torch.zeros_like(parameter)
            torch.mul(parameter.grad, 1 / self._world, out=own)  # as DDP scales them before gloo adds them up
        self._meet()
        for first, second, *others, mean in self._sums:
            torch.add(first, second, out=mean)
            for each in others:
                mean += each
        self._meet()
        for parameter, mean in zip(self._parameters, self._means, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(mean)

    def _allocated(self, size: int) -> mmap.mmap:
        """Memory of so many bytes, which is gone with the last of its processes. Its pages are taken when written."""
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

    def _meet(self) -> None:
        """Wait until all ranks are here."""
        for (after, to), (before, of) in zip(self._after.items(), self._before.items(), strict=True):
            try:
                to.send(b"\0")
            except OSError:
                raise _lost(after) from None
            try:
                heard = of.recv(1)
            except TimeoutError:
                raise Lost(
                    f"rank {before} of this pod did not come to the sum of gradients within {_PATIENCE:.0f} s"
                ) from None
            except OSError:
                heard = b""
            if not heard:
                raise _lost(before)


def _distances(world: int) -> list[int]:
    return [1 << each for each in range((world - 1).bit_length())]


def _like(buckets: Sequence[Sequence[nn.Parameter]], buffers: list[Tensor]) -> list[Tensor]:
    """The buffers cut into views of the parameters' shapes, whose numbers lie in memory as theirs do."""
    return [
        view.as_strided(each.size(), torch.empty_like(each, device="meta").stride(), view.storage_offset())
        for bucket, buffer in zip(buckets, buffers, strict=True)
        for each, view in zip(bucket, buffer.split([each.numel() for each in bucket]), strict=True)
    ]


def _chunk(buffer: Tensor, rank: int, world: int) -> Tensor:
    """The elements of `buffer` that `rank` adds up: gloo's segments, of which each rank has as many."""
    segments = max(-(-buffer.nbytes // _SEGMENT), 2 * world)
    each = -(-segments // world)
    length = each * -(-buffer.nbytes // (each * world * buffer.element_size()))
    return buffer[rank * length : (rank + 1) * length]


def _lost(rank: int) -> Lost:
    return Lost(f"rank {rank} of this pod went away")
