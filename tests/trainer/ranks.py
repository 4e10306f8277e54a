"""Real ranks for tests: processes over gloo, forked from a server that has torch imported already."""

import contextlib
import multiprocessing
import queue
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed",
        "torchmetrics",
        "torchtally.training.loop",
        "torchtally.distributed.handshake",
    ]
)
_LIMIT = 400  # seconds, on a machine that does much else


def run(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(rank, world, store, *arguments)` on every rank; what each returned or raised, in order of rank."""
    port = free_port()
    results = _context.Queue()
    processes = [
        _context.Process(target=_rank, args=(rank, world, port, results, function, arguments)) for rank in range(world)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    until = time.monotonic() + _LIMIT
    try:
        while len(found) < world:
            assert time.monotonic() < until, f"only ranks {sorted(found)} of {world} ended within {_LIMIT} s"
            with contextlib.suppress(queue.Empty):
                found.update([results.get(timeout=1)])
                continue
            dead = [p.exitcode for rank, p in enumerate(processes) if rank not in found and p.exitcode is not None]
            assert not any(dead), f"a rank died without a word, exit codes {dead}"
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(world)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _rank(rank: int, world: int, port: int, results: Any, function: Callable[..., Any], arguments: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
        results.put((rank, function(rank, world, store, *arguments)))
        store.set(f"done/{rank}", "")
        if rank == 0:  # the store lives in this process
            store.wait([f"done/{each}" for each in range(world)], timedelta(seconds=_LIMIT))
    except Exception as error:  # carried to the test, which decides
        error.add_note(traceback.format_exc())
        results.put((rank, error))
