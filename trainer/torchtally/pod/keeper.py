"""The keeper of a pod's ranks: a process that kills them once their agent is gone, also after kill -9.

Without it, ranks would continue as orphans, beside those of the pod's next start. The keeper runs as a program of its
own, which imports nothing from this package.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_DONE = "done"
_SEARCHES = 10  # for processes: one that is just starting has its environment a moment later
_INTERVAL = 0.1  # seconds between two searches


class Keeper:
    """The agent's end of the pipe to the keeper, which closes with the agent.

    The keeper finds processes by `marker`, an entry `NAME=value` of the environment that the agent gives its ranks.
    """

    def __init__(self, marker: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, marker],
            bufsize=0,  # nothing is left for close() to write to a keeper that has been killed, or could not start
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a signal to the agent's group does not end it
        )
        self.pid = self._process.pid

    def watch(self, rank: int) -> None:
        """Name the process of a forked rank, which has no marker: /proc shows the agent's environment for it."""
        self._send(str(rank))

    def dismiss(self) -> None:
        """End the keeper, because this pod's ranks have ended."""
        self._send(_DONE)

    def close(self) -> None:
        """Close a forked rank's copy of the pipe."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the keeper has been killed
            self._process.stdin.write(f"{line}\n".encode())


def keep(lines: Iterable[str], marker: str) -> None:
    """Read the agent's lines, and kill the ranks when the lines end without `_DONE`."""
    ranks = []
    for line in lines:
        if line.strip() == _DONE:
            return
        ranks.append((int(line), _start(int(line))))
    for rank, start in ranks:
        if start and _start(rank) == start:  # another process may have its ID by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank, signal.SIGKILL)  # each rank is the leader of a group
    for _ in range(_SEARCHES):
        for pid in _marked(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_INTERVAL)


def _start(pid: int) -> str | None:
    """When a process started, in ticks of the system's clock; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _marked(marker: str) -> Iterator[int]:
    for environment in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environment.parent.name)
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if pid != os.getpid() and marker.encode() in environment.read_bytes().split(b"\0"):
                yield pid


if __name__ == "__main__":
    keep(sys.stdin, sys.argv[1])
