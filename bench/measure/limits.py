"""Upper bounds of a training on this machine: the speed of its matrix products, copies, and gloo over loopback.

limits    starts a second process of itself as the peer over loopback
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is in C++

from bench import huge_pages
from bench.limit import PARTS
from bench.measure import model_passes
from bench.measure.products import operations, step_of
from bench.peers.common import BATCH
from bench.sample import emit

_ROUND_TRIPS = 2000
_LARGE = 1 << 24  # bytes of a message whose latency is negligible
_SECONDS = 0.4
_LAYOUTS = (torch.contiguous_format, torch.channels_last)  # of convolutions; the faster one counts


def main() -> None:
    huge_pages.start()  # as torchtally has them
    torch.set_num_threads(1)
    if sys.argv[1:]:
        _other_end(int(sys.argv[1]))
        return
    for task, parts in PARTS.items():
        seconds = min(_mean_seconds(step_of(task, layout)) for layout in _LAYOUTS)
        speed = operations(task) / seconds / 1e9
        emit("limit", speed, "Gflop/s", "higher", what=parts.operations)
        emit("limit", BATCH / seconds, "samples/s", "higher", what=parts.products)
        there, here = (torch.zeros(parts.gradient, dtype=torch.uint8) for _ in range(2))
        seconds = _mean_seconds(partial(there.copy_, here))
        emit("limit", parts.gradient / seconds / 1e9, "GB/s", "higher", what=parts.copied)
    for what, speed in model_passes.speeds().items():
        emit("limit", speed, "tokens/s" if "gpt" in what else "samples/s", "higher", what=what)
    latency, bandwidth = _loopback()
    emit("limit", latency * 1e6, "µs", "lower", what="gloo, one byte one way")
    emit("limit", bandwidth / 1e9, "GB/s", "higher", what="gloo, 16 MB one way")


def _mean_seconds(step: Callable[[], object]) -> float:
    for _ in range(20):
        step()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        step()
        count += 1
    return (time.perf_counter() - began) / count


def _loopback() -> tuple[float, float]:
    """The one-way latency in seconds, and the bandwidth in bytes per second."""
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    with subprocess.Popen([sys.executable, "-m", "bench.measure.limits", str(store.port)]):
        dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=60))
        small, large = torch.zeros(1, dtype=torch.uint8), torch.zeros(_LARGE, dtype=torch.uint8)
        _there_and_back(small, _ROUND_TRIPS // 10)
        latency = _there_and_back(small, _ROUND_TRIPS) / 2
        _there_and_back(large, 3)
        seconds = _there_and_back(large, 20) / 2
        dist.destroy_process_group()
    return latency, _LARGE / (seconds - latency)


def _there_and_back(message: Tensor, times: int) -> float:
    """Mean seconds of a round trip; the peer makes as many."""
    began = time.perf_counter()
    for _ in range(times):
        dist.send(message, 1)
        dist.recv(message, 1)
    return (time.perf_counter() - began) / times


def _other_end(port: int) -> None:
    store = TCPStore("127.0.0.1", port, 2, is_master=False)
    dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=timedelta(seconds=60))
    small, large = torch.zeros(1, dtype=torch.uint8), torch.zeros(_LARGE, dtype=torch.uint8)
    for message, times in ((small, _ROUND_TRIPS // 10), (small, _ROUND_TRIPS), (large, 3), (large, 20)):
        for _ in range(times):
            dist.recv(message, 0)
            dist.send(message, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
