"""DDP's all-reduce where all ranks are in one pod: through memory that they share, and to the bit what gloo makes.

gloo's ring (gloo/allreduce.cc) cuts a buffer into a chunk for each rank, and adds chunk c up from rank c - 1 downwards,
round the ring, to rank c. Here rank c adds it up in one go. So a training's weights do not tell where its ranks ran.
"""

import mmap
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from torchtally import agreement
from torchtally.errors import Lost

_SEGMENT = 1 << 20  # bytes: gloo's kMaxSegmentSize
_PATIENCE = agreement.COLLECTIVE.total_seconds()


def shared(local_world: int) -> "Shared | None":
    """One for the ranks of the process group, if this pod has all of them and its system can. A collective call."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if local_world < world or sys.platform != "linux":
        return None
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(folder, "ranks"))
            listener.bind(address)
            listener.listen(world)
            dist.broadcast_object_list([address])
            listener.settimeout(_PATIENCE)
            links = {}
            for _ in range(1, world):
                link, _ = listener.accept()
                links[int.from_bytes(link.recv(4, socket.MSG_WAITALL))] = link
    else:
        told: list[Any] = [None]
        dist.broadcast_object_list(told)
        links = {0: socket.socket(socket.AF_UNIX)}
        links[0].connect(told[0])
        links[0].sendall(rank.to_bytes(4))
    for link in links.values():
        link.settimeout(_PATIENCE)
    return Shared(rank, world, links)


class Shared:
    """The memory, and how its ranks wait for each other: by a byte to rank 0 and one back.

    The memory's halves take turns: while one rank begins a sum, another may still read the last one. `links` are rank
    0's sockets to all others, by rank, and another rank's to rank 0.
    """

    def __init__(self, rank: int, world: int, links: dict[int, socket.socket]) -> None:
        self._rank, self._world, self._links = rank, world, links
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._half = 0
        self._views: dict[tuple[int, int, torch.dtype], list[tuple[Tensor, ...]]] = {}

    def hook(self, _: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """For DistributedDataParallel.register_comm_hook."""
        gradients = bucket.buffer()
        self.mean(gradients)
        done: Future[Tensor] = Future()
        done.set_result(gradients)
        return done

    def mean(self, tensor: Tensor) -> None:
        """Make of `tensor`, of one dimension on the CPU, the mean of all ranks'. A collective call; raises Lost."""
        rank, world = self._rank, self._world
        slots = self._slots(tensor)
        mine = tensor.split(_chunks(tensor, world))
        others = [(rank - each) % world for each in range(1, world)]
        for each in others:
            torch.mul(mine[each], 1 / world, out=slots[rank][each])  # as DDP scales them before gloo adds them up
        self._meet()
        total = slots[others[0]][rank]
        for each in others[1:]:
            total = total + slots[each][rank]
        torch.add(total, mine[rank].mul_(1 / world), out=slots[rank][rank])
        self._meet()
        for each, chunk in enumerate(mine):
            chunk.copy_(slots[each][each])

    def _slots(self, tensor: Tensor) -> list[tuple[Tensor, ...]]:
        """Each rank's part of the memory's other half, in chunks."""
        self._half = 1 - self._half
        key = (self._half, len(tensor), tensor.dtype)
        if key not in self._views:
            size = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if 2 * self._world * size > len(self._memory):
                self._views.clear()
                self._memory = self._grown(2 * self._world * size)
            begin = self._half * len(self._memory) // 2
            self._views[key] = [
                torch.frombuffer(self._memory, dtype=tensor.dtype, count=len(tensor), offset=begin + rank * size).split(
                    _chunks(tensor, self._world)
                )
                for rank in range(self._world)
            ]
        return self._views[key]

    def _grown(self, size: int) -> mmap.mmap:
        """Memory of so many bytes, which is gone with the last of its processes. Its pages are taken when written."""
        if self._rank == 0:
            memory = os.memfd_create("gradients")
            os.truncate(memory, size)
            for link in self._links.values():
                socket.send_fds(link, [b"\0"], [memory])
        else:
            _, (memory, *_), _, _ = socket.recv_fds(self._links[0], 1, 1)
        try:
            return mmap.mmap(memory, size)
        finally:
            os.close(memory)

    def _meet(self) -> None:
        """Wait until all ranks are here."""
        if self._rank == 0:
            for rank, link in self._links.items():
                _hear(rank, link)
        for rank, link in self._links.items():
            try:
                link.send(b"\0")
            except OSError:
                raise _lost(rank) from None
        if self._rank:
            _hear(0, self._links[0])


def _chunks(tensor: Tensor, world: int) -> list[int]:
    """How many elements of `tensor` each rank adds up: gloo's segments, of which each rank has as many."""
    segments = max(-(-tensor.nbytes // _SEGMENT), 2 * world)
    each = -(-segments // world)
    size = tensor.element_size()
    length = each * -(-tensor.nbytes // (each * world * size))
    return [max(0, min(length, len(tensor) - rank * length)) for rank in range(world)]


def _hear(rank: int, link: socket.socket) -> None:
    try:
        heard = link.recv(1)
    except TimeoutError:
        raise Lost(f"rank {rank} of this pod did not come to the sum of gradients within {_PATIENCE:.0f} s") from None
    except OSError:
        heard = b""
    if not heard:
        raise _lost(rank)


def _lost(rank: int) -> Lost:
    return Lost(f"rank {rank} of this pod went away")
