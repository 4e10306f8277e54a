"""The pods of a job on this machine: the real entry point, with the environment that PyTorchJob gives each."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import ranks

ENTRY = "import sys; from torchtally import cli; sys.exit(cli.main(sys.argv[1:]))"
LIMIT = 300  # seconds
# Variables of pods that soon kill ranks which do not notice that a peer is gone, and do not look for a cause for long.
STRICT = {"TORCHTALLY_GRACE_SECONDS": "1", "TORCHTALLY_CAUSE_SECONDS": "1"}
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


def environment(**more: str) -> dict[str, str]:
    """That of this process, without what belongs to a job or a rank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NVIDIA_VISIBLE_DEVICES"):
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1", "TORCHTALLY_DEVICE": "cpu", **more}


def shell(script: str) -> list[str]:
    """The arguments of torchtally for a script of the shell."""
    return ["run", "--", "sh", "-c", script]


def until(what: str, condition: Callable[[], object]) -> None:
    """Wait until the condition, which `what` says in words, is true."""
    ends = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < ends, f"waited {LIMIT} s until {what}"
        time.sleep(0.05)


class Job:
    """`count` pods that can be started, and started again, one by one; each has a termination log as in a cluster."""

    def __init__(self, environment: dict[str, str], folder: Path, count: int) -> None:
        self._environment, self.folder, self._count = environment, folder, count
        self.port = str(ranks.free_port())
        self._started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, command: list[str], entry: str = ENTRY, **more: str) -> "Pod":
        name = "demo-master-0" if rank == 0 else f"demo-worker-{rank - 1}"
        log = self.folder / f"{name}-{len(self._started)}.termination"
        log.write_text("what stood here before, much longer than all that will stand here " * 200)
        job = {
            "HOSTNAME": name,
            **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "127.0.0.1"),
            **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), self.port),
            **{variable: str(rank) for variable in ("RANK", "PET_NODE_RANK")},
            **{"WORLD_SIZE": str(self._count), "PET_NNODES": str(self._count), "PET_NPROC_PER_NODE": "1"},
            "TORCHTALLY_TERMINATION_LOG": str(log),
        }
        if "PET_NPROC_PER_NODE" in more:
            more["WORLD_SIZE"] = str(self._count * int(more["PET_NPROC_PER_NODE"]))
        process = subprocess.Popen(
            [sys.executable, "-c", entry, *command],
            env={**self._environment, **job, **more},
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{name}-{len(self._started)}.err").open("w+"),
            text=True,
        )
        self._started.append(process)
        return Pod(process, log, self.folder / f"{name}-{len(self._started) - 1}.err")

    def all(self, command: list[str], **more: str) -> "list[Pod]":
        return [self.start(rank, command, **more) for rank in range(self._count)]

    def kill(self) -> None:
        for process in self._started:
            if process.poll() is None:
                kill(process.pid)
            process.wait()


class Pod:
    """One that was started."""

    def __init__(self, process: subprocess.Popen[str], log: Path, errors: Path) -> None:
        self.process, self._log, self._errors = process, log, errors
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Lines are read as they come: a pod whose pipe is full would stop, and the others would wait for it."""
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str:
        """The next one, without its white space; "" after the last."""
        try:
            line = self._lines.get(timeout=LIMIT)
        except queue.Empty:
            raise AssertionError(f"no line within {LIMIT} s; the pod's messages:\n{self.errors}") from None
        if line is None:
            self._lines.put(None)
            return ""
        return line.strip()

    def rest(self) -> str:
        """All that follows the lines read before, until the pod has ended."""
        lines = list(iter(lambda: self._lines.get(timeout=LIMIT), None))
        self._lines.put(None)
        self.wait()
        return "".join(lines)

    def wait(self) -> int:
        return self.process.wait(LIMIT)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As if its node had lost power: no process can say a word."""
        kill(self.process.pid)

    def freeze(self) -> list[psutil.Process]:
        """As if its node were gone: no process runs, no socket is closed. Returns what was frozen, for `thaw`."""
        return stop(self.process.pid)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def message(self) -> str:
        """The termination message, without the id and the link at its end."""
        return re.sub(r" \[T\d\d\] https://\S+#t\d\d", "", self._log.read_text())


def family(pid: int) -> list[psutil.Process]:
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stop(pid: int) -> list[psutil.Process]:
    """Parents before their children are listed: none that is stopped starts another."""
    stopped: list[psutil.Process] = []
    waiting = [psutil.Process(pid)]
    while waiting:
        process = waiting.pop()
        with contextlib.suppress(psutil.NoSuchProcess):  # a shell's `sleep 0.1`
            process.suspend()
            stopped.append(process)
            until(f"{process} has stopped", lambda process=process: process.status() in _STILL)
            waiting += process.children()
    return stopped


def thaw(stopped: list[psutil.Process]) -> None:
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def kill(pid: int) -> None:
    for process in stop(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def job(environment: dict[str, str], folder: Path, count: int) -> Iterator[Job]:
    started = Job(environment, folder, count)
    try:
        yield started
    finally:
        started.kill()
