"""Samplers of N samples: time to the first index, indices per second, memory. One tool and one N in each process.

sampler TOOL N    e.g. torchtally 1000000000
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.sample import emit

CASES = [
    ("torchtally", 10**7),
    ("torch", 10**7),  # holds all indices in a list: 40 GB for 10⁹
    ("torchdata", 10**7),
    ("streaming", 10**7),  # holds several arrays of all indices: 3.3 GB for 10⁸, 33 GB for 10⁹
    ("torchtally", 10**9),
    ("torchtally", 10**12),
    ("locality-1", 10**7),
    ("locality-1", 10**9),
]
_WORLD = 4
_SHARD = 1 << 16  # samples in a file of mosaicml-streaming: 1 KiB each in 64 MiB, its default
_BATCH = 32
_CHUNK = 1 << 18  # indices taken at a time
_MOST = 40 * _CHUNK


def main() -> None:
    tool, n = sys.argv[1], int(sys.argv[2])
    made = TOOLS[tool](n)
    before = _peak_bytes()
    began = time.perf_counter()
    count = next(made)
    first = time.perf_counter() - began
    count += sum(made)
    seconds = time.perf_counter() - began
    emit("sampler, first index", first * 1e3, "ms", "lower", tool=tool, n=n)
    emit("sampler, indices", count / seconds / 1e6, "million/s", "higher", tool=tool, n=n)
    emit("sampler, memory", (_peak_bytes() - before) / 1e6, "MB", "lower", tool=tool, n=n)


# Each tool yields the number of indices it has made since the last one: first a single index.


def _torchtally(n: int) -> Iterator[int]:
    return _taken("feistel-1", n)


def _locality(n: int) -> Iterator[int]:
    from torchtally.accounting.order.locality import Locality

    full, rest = divmod(n, _SHARD)
    return _taken(Locality(window=8, lanes=_WORLD, sizes=[_SHARD] * full + [rest] * bool(rest)).of(n), n)


def _taken(order: Any, n: int) -> Iterator[int]:
    from torchtally.proof.shards import Shard

    def take(order: Any, n: int, begin: int, end: int) -> int:
        return len(Shard(n=n, rank=0, world=_WORLD, order=order).indices(begin, end))

    take("feistel-1", 1000, 0, 1)  # numpy's initialization
    end = min(_MOST, n // _WORLD)
    bounds = [0, 1, *range(_CHUNK, end, _CHUNK), end]
    return (take(order, n, begin, stop) for begin, stop in pairwise(bounds))


def _torch(n: int) -> Iterator[int]:
    from torch.utils.data.distributed import DistributedSampler

    samples: Any = range(n)  # the sampler uses only its length
    return _counted(DistributedSampler(samples, _WORLD, 0))


def _torchdata(n: int) -> Iterator[int]:
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    samples: Any = range(n)
    return _counted(StatefulDistributedSampler(samples, _WORLD, 0))


def _streaming(n: int) -> Iterator[int]:
    """The default order of StreamingDataset on four nodes with one rank each: each node computes all indices.

    Resampling of streams, which makes another such array, and the exchange among ranks are left out.
    """
    find_streaming()
    import numpy as np
    from streaming.base import partition, shuffle

    full, rest = divmod(n, _SHARD)
    shards = np.array([_SHARD] * full + [rest] * bool(rest))

    def made() -> Iterator[int]:
        places = partition.get_partitions("relaxed", n, _WORLD, _WORLD, 1, 1, _BATCH)
        order = shuffle.get_shuffle("py1e", shards, _WORLD, 9176, 1, max(4_000_000 // _WORLD, 1 << 18))
        indices = np.where(places != -1, order[places], -1)
        own = int(np.count_nonzero(indices[0] != -1))  # -1 pads the last batch
        yield 1
        yield own - 1

    return made()


def find_streaming() -> None:
    """Let mosaicml-streaming's orders be imported alone: its own __init__ imports all, which needs 30 packages."""
    for name in ("streaming", "streaming.base"):
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(metadata.distribution("mosaicml-streaming").locate_file(name.replace(".", "/")))]


def _counted(sampler: Iterable[int]) -> Iterator[int]:
    """Yield 1 for each index. A generator expression would start the sampler before the first request."""
    for _ in sampler:
        yield 1


def _peak_bytes() -> int:
    """The peak of this process alone; that of getrusage includes the parent's peak at the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


TOOLS: dict[str, Callable[[int], Iterator[int]]] = {
    "torchtally": _torchtally,
    "torch": _torch,
    "torchdata": _torchdata,
    "streaming": _streaming,
    "locality-1": _locality,
}

if __name__ == "__main__":
    main()
