"""Runs inside a pod, by `python - VERB ARGUMENTS <inside.py`: the image has neither ps nor pkill.

It prints `at T` right before it does its deed, T in seconds since 1970.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

CHECKPOINTS = Path("/output/checkpoints")
PORT = ":5BA0"  # 23456, where the agents meet
LISTENING, CONNECTED = "0A", "01"  # in /proc/net/tcp
LIMIT = 240  # seconds to wait for a moment
IDLE = 3.0  # seconds without any CPU time until a rank counts as waiting


@dataclass(frozen=True)
class Process:
    pid: int
    state: str
    parent: int
    ticks: int  # of CPU time
    name: str
    command: list[str]


def processes() -> list[Process]:
    """All of the container but this one and PID 1, which cannot be signalled from within."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = (each / "stat").read_text().partition("(")[2].rpartition(")")
            stat = rest.split()
            command = (each / "cmdline").read_text().split("\0")
            found.append(Process(int(each.name), stat[0], int(stat[1]), int(stat[11]) + int(stat[12]), name, command))
    return [each for each in found if each.pid not in (1, os.getpid()) and each.state not in "ZX"]


def ranks() -> list[Process]:
    """A fork has its agent's command, and this name once the agent has started it; others have their program's."""
    agents = {each.pid for each in agent()}
    return [
        each
        for each in processes()
        if each.name.startswith("rank ") or (each.parent in agents and "run" not in each.command)
    ]


def agent() -> list[Process]:
    """Where a pod counts its restarts, it is a fork of the pod's first process. Its own forks are ranks to come."""
    own = [each for each in processes() if "run" in each.command]
    first = [each for each in own if each.parent == 1]
    return first + [each for each in own if each.parent in {of.pid for of in first}]


PARTS = {"ranks": ranks, "agent": agent, "all": processes}


def connections(state: str) -> list[tuple[str, str]]:
    """Local and remote address of each, as IP:PORT in the kernel's spelling."""
    lines = [line.split() for file in Path("/proc/net").glob("tcp*") for line in file.read_text().splitlines()[1:]]
    return [(local, remote) for _, local, remote, found, *_ in lines if found == state]


# Moments: functions that are asked again and again whether it is time.


def at_rendezvous() -> bool:
    """The agent meets the others, or waits for them; it has no ranks yet."""
    listens = any(local.endswith(PORT) for local, _ in connections(LISTENING))
    meets = any(remote.endswith(PORT) for _, remote in connections(CONNECTED))
    return (listens or meets) and not ranks()


def waiting_for_data() -> Callable[[], bool]:
    """The rank does nothing: its data does not come."""
    since: dict[int, float] = {}
    before: dict[int, int] = {}

    def ask() -> bool:
        idle = []
        for rank in ranks():
            if before.get(rank.pid) != rank.ticks:
                since[rank.pid] = time.monotonic()
            before[rank.pid] = rank.ticks
            idle.append(time.monotonic() - since[rank.pid] > IDLE)
        return bool(idle) and all(idle)

    return ask


def saving() -> bool:
    """A checkpoint is half written, and not the first."""
    return any(CHECKPOINTS.glob("epoch-*.checkpoint")) and any(CHECKPOINTS.glob(".epoch-*.checkpoint.*"))


def saved(epoch: int, within: bool) -> bool:
    """There is a checkpoint of this epoch, or of a later one; `within`: not of its beginning."""
    for name in (path.name for path in CHECKPOINTS.glob("epoch-*.checkpoint")):
        _, number, _, position = name.partition(".")[0].split("-")
        if int(number) >= epoch and (not within or int(position)):
            return True
    return False


def own_saved(whole: str) -> bool:
    """There is a whole checkpoint of a user's own script: a file of this pattern."""
    return any(Path("/").glob(whole))


def own_saving(whole: str) -> bool:
    """A checkpoint of a user's own script is half written, and not the first."""
    folder, _, file = whole.rpartition("/")
    return own_saved(whole) and any(not (each / file).exists() for each in Path("/").glob(folder))


def moment(name: str) -> Callable[[], bool]:
    kind, _, which = name.partition(":")
    return {
        "any": lambda: True,
        "rendezvous": at_rendezvous,
        "data": waiting_for_data(),
        "save": saving,
        "own-save": lambda: own_saving(which),
        "own-mid-epoch": lambda: own_saved(which),
        "mid-epoch": lambda: saved(int(which), within=True),
        "last-step": lambda: saved(int(which) + 1, within=False),
        "lingering": lambda: Path("/output/lingered").exists(),  # linger.py
    }[kind]


# Deeds.


def send(number: signal.Signals, part: str) -> None:
    for each in PARTS[part]():
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, number)


def stop(part: str, name: str) -> None:
    """SIGSTOP to `part` at the moment `name`, and not a step later."""
    is_time = moment(name)
    ends = time.monotonic() + LIMIT
    while time.monotonic() < ends:
        if is_time() and PARTS[part]():
            send(signal.SIGSTOP, part)
            while any(each.state not in "Tt" for each in PARTS[part]()):
                time.sleep(0.001)
            if is_time() and PARTS[part]():
                return
            send(signal.SIGCONT, part)
        time.sleep(0.001 if "save" in name else 0.02)
    sys.exit(f"waited {LIMIT} s in vain for the moment {name!r}")


def done() -> None:
    print(f"at {time.time()}", flush=True)


def do(verb: str, *arguments: str) -> None:
    match verb, arguments:
        case "stop", (part, name):
            stop(part, name)
            done()
        case "kill", (part, name):
            stop(part, name)
            done()
            time.sleep(2)  # for the line to arrive: this process ends with the container
            send(signal.SIGKILL, part)
        case "go", (part,):
            send(signal.SIGCONT, part)
            done()
        case "forget", (name,):
            until_unknown(name)
            done()
        case "fill", (name,):
            stop("ranks", name)
            done()
            fill_the_volume()
        case "exhaust", ():
            done()
            exhaust_memory()
        case _:
            sys.exit(f"no such deed: {verb} {arguments}")


def until_unknown(name: str) -> None:
    ends = time.monotonic() + LIMIT
    while time.monotonic() < ends:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return
        time.sleep(0.5)
    sys.exit(f"{name} still has an address after {LIMIT} s")


def fill_the_volume() -> None:
    """Leave no byte of it free until a checkpoint could not be written, while the ranks, which are stopped, go on."""
    file = Path("/output/full")
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        for _ in count():
            opened.write(b"x" * 4096)
    before = CHECKPOINTS.stat().st_mtime_ns
    send(signal.SIGCONT, "ranks")
    ends = time.monotonic() + LIMIT
    # A file has come and gone again.
    while CHECKPOINTS.stat().st_mtime_ns == before or any(CHECKPOINTS.glob(".epoch-*")):
        if time.monotonic() > ends:
            sys.exit(f"waited {LIMIT} s in vain for a checkpoint")
        time.sleep(0.01)
    file.unlink()


def exhaust_memory() -> None:
    """Let the kernel find too much memory in use, until it has killed a rank.

    Files in memory are nobody's in its eyes, so it ends the largest process. What has no name goes with this one.
    """
    file = Path("/dev/shm/full")
    pids = {rank.pid for rank in ranks()}
    with file.open("wb", buffering=0) as opened:
        file.unlink()
        while pids <= {rank.pid for rank in ranks()}:
            opened.write(b"x" * (1 << 20))


if __name__ == "__main__":
    do(*sys.argv[1:])
