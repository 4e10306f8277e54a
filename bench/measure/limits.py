"""What no training of the perceptron on this machine can beat: its bare matrix products, and the bytes of its gradient.

limits    starts itself a second time, as the other end of a connection over loopback
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is in C++

from bench.peers.common import BATCH, model
from bench.sample import emit

_ROUND_TRIPS = 2000
_LARGE = 1 << 24  # bytes of a message whose latency is nothing beside its bytes
_SECONDS = 1.0


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:]:
        _other_end(int(sys.argv[1]))
        return
    net = model("fashion-mnist")
    shapes = [tuple(each.shape) for each in net.parameters() if each.dim() == 2]
    step = _step_of(shapes)
    operations = 2 * BATCH * (3 * sum(a * b for a, b in shapes) - shapes[0][0] * shapes[0][1])
    seconds = _mean_seconds(step)
    emit("limit", operations / seconds / 1e9, "Gflop/s", "higher", what="matrix products of a step, one core")
    emit("limit", BATCH / seconds, "samples/s", "higher", what="samples by these products alone, one core")
    there, here = (torch.zeros(sum(each.numel() for each in net.parameters())) for _ in range(2))
    seconds = _mean_seconds(lambda: there.copy_(here))
    emit("limit", there.nbytes / seconds / 1e9, "GB/s", "higher", what="the gradient's bytes copied, one core")
    latency, bandwidth = _loopback()
    emit("limit", latency * 1e6, "µs", "lower", what="gloo, one byte one way")
    emit("limit", bandwidth / 1e9, "GB/s", "higher", what="gloo, 16 MB one way")


def _step_of(shapes: list[tuple[int, ...]]) -> Callable[[], None]:
    """Forward, gradient of the weights, and gradient of the input, which the first layer needs none of."""
    layers = [
        (torch.randn(BATCH, inside), torch.randn(outside, inside), torch.randn(BATCH, outside))
        for outside, inside in shapes
    ]
    results = [
        (torch.empty(BATCH, outside), torch.empty(outside, inside), torch.empty(BATCH, inside))
        for outside, inside in shapes
    ]

    def step() -> None:
        for number, ((x, w, dy), (y, dw, dx)) in enumerate(zip(layers, results, strict=True)):
            torch.mm(x, w.t(), out=y)
            torch.mm(dy.t(), x, out=dw)
            if number:
                torch.mm(dy, w, out=dx)

    return step


def _mean_seconds(step: Callable[[], object]) -> float:
    for _ in range(20):
        step()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        step()
        count += 1
    return (time.perf_counter() - began) / count


def _loopback() -> tuple[float, float]:
    """Seconds of the smallest message one way, and bytes a second of a large one."""
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
    """Mean seconds of a round trip; the other end makes as many."""
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
