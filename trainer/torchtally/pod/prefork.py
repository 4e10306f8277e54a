"""The ranks of a pod, forked before torchrun's agent has threads: a pod imports torch once.

Each waits until the agent starts it, and is the agent's child as any other rank. A rank that is restarted, in an
elastic job, is an ordinary process: the agent has threads by then, and a fork of a process with threads may hang.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import torch
from threadpoolctl import threadpool_limits

from torchtally import compat, standard_output
from torchtally.errors import Ending
from torchtally.pod import parent_death
from torchtally.pod.failure import exit_rank
from torchtally_observer import process, signs

Result = TypeVar("Result")
# macOS' own libraries do not survive a fork.
_fork = multiprocessing.get_context("fork") if sys.platform == "linux" else None


def apart(function: Callable[[], Result]) -> Result:
    """Call `function` in another process. Returns its result, or raises its Ending.

    This process then has not touched the GPU, and can be forked.
    """
    if _fork is None:
        return function()
    here, there = _fork.Pipe()

    def answer() -> None:
        try:
            there.send(function())
        except Ending as ending:
            there.send(ending)

    asked = _fork.Process(target=answer)
    asked.start()
    there.close()
    try:
        answered = here.recv()
    except EOFError:
        raise RuntimeError(f"{function} ended without an answer") from None
    finally:
        asked.kill()  # it has answered, and a GPU's driver may take its time to end
        asked.join()
    if isinstance(answered, Ending):
        raise answered
    return cast(Result, answered)


def main_of(module: str, command: Sequence[str]) -> Callable[[], int]:
    """Import a module of this package, for all ranks. Returns what calls its main() in a rank, as `command` does."""
    main: Callable[[], int] = importlib.import_module(module).main

    def run() -> NoReturn:
        process.current().leave()  # it keeps its own account, and the image's variable may have started an observation
        sys.argv = list(command[command.index(module) :])
        for stream in (sys.stdout, sys.stderr):
            # Whole lines, which do not mix with another rank's: unbuffered, print() writes the newline separately.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
        exit_rank(main())

    return run


def fork(command: Sequence[str], count: int, threads: int | None) -> bool:
    """Fork `count` ranks. torchrun's agent takes one where it would start `command`.

    They end with the agent. Each uses `threads`; with None, as many as OpenMP found in the environment when torch was
    imported.

    Returns:
        Whether this process is a rank, which the agent has started.
    """
    if _fork is None or threading.active_count() > 1:
        return False
    gc.freeze()  # a collection in a rank would copy what they share
    agent = os.getpid()
    waiting: list[_Rank] = []
    for _ in range(count):
        here, there = multiprocessing.Pipe()
        standard_output.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            parent_death.end_with(agent)
            _wait(there, [here, *(each.connection for each in waiting)], threads)
            return True
        there.close()
        waiting.append(_Rank(pid, here))

    def start(args: tuple[str, ...], env: dict[str, str]) -> _Rank | None:
        # A wrapper around the command is for ordinary processes.
        return waiting.pop(0).start(env) if waiting and args == tuple(command) else None

    compat.start_ranks_with(start)
    return False


class _Rank:
    """As much of subprocess.Popen as the agent uses."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid, self.connection = pid, connection
        self._code: int | None = None

    def start(self, env: dict[str, str]) -> "_Rank":
        with contextlib.suppress(BrokenPipeError):  # it has been killed, as its exit code shows
            self.connection.send(env)
        self.connection.close()
        return self

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float = float("inf")) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.02)
        return code


def _wait(go: Connection, others: Sequence[Connection], threads: int | None) -> None:
    """In the forked process: wait for the environment of the rank. `others` are pipes that it inherited."""
    os.setsid()  # as the agent expects, which signals process groups
    for each in others:
        each.close()
    try:
        env = go.recv()
    except EOFError:
        os._exit(0)  # the pod has ended, or needs no such rank
    go.close()
    _close_inherited_files()
    os.environ.clear()
    os.environ.update(env)
    signs.give()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"rank {env['RANK']}")  # which `ps` and `top` show
    # In any case, and here: torch's thread pool is lost in a fork: its next user makes one, and two threads at once
    # (RPC's) fail at that with "Invalid thread pool!".
    torch.set_num_threads(threads or torch.get_num_threads())
    if threads:
        threadpool_limits(threads)  # numpy's, which has read the environment of the pod


def _close_inherited_files() -> None:
    """Close those that the pod was started with, as the agent does for a rank that it starts itself."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the listing's own
            if number > 2 and os.get_inheritable(number):
                os.close(number)
