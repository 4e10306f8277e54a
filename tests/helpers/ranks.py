"""Real ranks for tests: processes over gloo, which the fork server starts with torch imported already."""

import contextlib
import gc
import pickle
import random
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

_LIMIT = 400  # seconds, on a machine that does much else
_locks: deque[socket.socket] = deque(maxlen=100)  # of the newest ports: what is older listens by now, or has ended


def run(world: int, function: Callable[..., Any], *arguments: Any, killed: bool = False) -> list[Any]:
    """`function(rank, world, store, *arguments)` on every rank; what each returned or raised, in order of rank.

    Where ranks can be `killed`, these have None.
    """
    port = free_port()
    what = pickle.dumps((function, arguments))
    processes: list[subprocess.Popen[bytes]] = []
    running: dict[Connection, int] = {}
    found: dict[int, Any] = {}
    until = time.monotonic() + _LIMIT
    try:
        for rank in range(world):
            here, there = Pipe()
            processes.append(subprocess.Popen([sys.executable, __file__], stdin=there))
            there.close()
            here.send((rank, world, port, sys.path))
            here.send_bytes(what)
            running[here] = rank
        while running:
            ready = wait(list(running), until - time.monotonic())
            assert ready, f"only ranks {sorted(found)} of {world} ended within {_LIMIT} s"
            for each in ready:
                assert isinstance(each, Connection)
                rank = running.pop(each)
                try:
                    found[rank] = pickle.loads(each.recv_bytes())
                except (EOFError, ConnectionError):
                    if killed:
                        found[rank] = None
                        continue
                    raise AssertionError(f"rank {rank} died without a word") from None
    finally:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
    return [found[rank] for rank in range(world)]


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to connections: one could take it until then.

    Its UDP port, which nothing here uses, is a lock: two workers of the tests do not choose the same one.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        lock = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as listener, contextlib.suppress(OSError):
            lock.bind(("127.0.0.1", port))
            listener.bind(("127.0.0.1", port))
            _locks.append(lock)
            return port
        lock.close()


def main() -> None:
    """A rank, whose stdin is a pipe to the test."""
    import torch
    import torch.distributed as dist

    test = Connection(0)
    rank, world, port, sys.path[:] = test.recv()
    function, arguments = pickle.loads(test.recv_bytes())
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
        test.send_bytes(pickle.dumps(function(rank, world, store, *arguments)))
        store.set(f"done/{rank}", "")
        if rank == 0:  # the store lives in this process
            if dist.is_initialized():  # the others find its connections closed, as those of a process that has ended
                dist.destroy_process_group()
                gc.collect()
            store.wait([f"done/{each}" for each in range(world)], timedelta(seconds=_LIMIT))
    except Exception as error:  # carried to the test, which decides
        error.add_note(traceback.format_exc())
        test.send_bytes(pickle.dumps(error))


if __name__ == "__main__":
    main()
