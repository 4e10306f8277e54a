"""The ranks of a built-in task, forked before torchrun's agent has threads: a pod imports torch once.

Each waits until the agent starts it, and is the agent's child as any other rank. A rank that is restarted, in an
elastic job, is an ordinary process: the agent has threads by then, and a fork of a process with threads may hang.
"""

import atexit
import contextlib
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar, cast

import torch

from torchtally import compat
from torchtally.errors import Ending
from torchtally.pod.failure import exit_rank

Result = TypeVar("Result")
_fork = (
    multiprocessing.get_context("fork") if sys.platform == "linux" else None
)  # macOS' own libraries do not survive a fork


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

    process = _fork.Process(target=answer)
    process.start()
    there.close()
    try:
        answered = here.recv()
    except EOFError:
        raise RuntimeError(f"{function} ended without an answer") from None
    finally:
        process.kill()  # it has answered, and a GPU's driver may take its time to end
        process.join()
    if isinstance(answered, Ending):
        raise answered
    return cast(Result, answered)


def fork(module: str, command: Sequence[str], count: int, threads: int | None) -> None:
    """Fork `count` ranks, which run main() of `module`. torchrun's agent takes one where it would start `command`.

    Each uses `threads`; with None, as many as OpenMP found in the environment when torch was imported.
    """
    main = importlib.import_module(module).main
    if _fork is None or threading.active_count() > 1:
        return
    gc.freeze()  # a collection in a rank would copy what they share
    program = _Program(main, list(command[command.index(module) :]), threads)
    waiting: list[_Rank] = []
    for _ in range(count):
        waiting.append(_Rank(program, [each.connection for each in waiting]))
    # If the agent fails before it starts them, Python would wait for their end, and they for Python's.
    for each in waiting:
        atexit.register(each.connection.close)

    def start(args: tuple[str, ...], env: dict[str, str]) -> _Rank | None:
        # A wrapper around the command is for ordinary processes.
        return waiting.pop(0).start(env) if waiting and args == tuple(command) else None

    compat.start_ranks_with(start)


@dataclass(frozen=True)
class _Program:
    main: Callable[[], int]
    argv: list[str]
    threads: int | None


class _Rank:
    """As much of subprocess.Popen as the agent uses."""

    def __init__(self, program: _Program, others: Sequence[Connection]) -> None:
        assert _fork is not None
        self.connection, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_wait, args=[program, theirs, [self.connection, *others]])
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def start(self, env: dict[str, str]) -> "_Rank":
        with contextlib.suppress(BrokenPipeError):  # it has been killed, as its exit code shows
            self.connection.send(env)
        return self

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0)
        return self._process.exitcode


def _wait(program: _Program, go: Connection, others: Sequence[Connection]) -> None:
    """In the forked process: wait for the environment, and be the rank. `others` are pipes that it inherited."""
    os.setsid()  # as the agent expects, which signals process groups
    for each in others:
        each.close()
    try:
        env = go.recv()
    except EOFError:
        return  # the pod has ended, or needs no such rank
    go.close()
    os.environ.clear()
    os.environ.update(env)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"rank {env['RANK']}")  # which `ps` and `top` show
    # In any case, and here: a fork leaves torch's thread pool to be made anew by its next user, and two threads at once
    # (RPC's) fail at that with "Invalid thread pool!".
    torch.set_num_threads(program.threads or torch.get_num_threads())
    sys.argv = program.argv
    for stream in (sys.stdout, sys.stderr):
        # Whole lines, which do not mix with another rank's: unbuffered, print() writes the newline separately.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    exit_rank(program.main())
