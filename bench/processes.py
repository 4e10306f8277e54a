"""A program with a limit of time, whose processes all end with it; and a port for processes to meet at."""

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import psutil

# Of Python, argparse, and C++.
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt): |\S+: error: |terminate called ")
_RANK = re.compile(r"\[rank\d+\]:\s*")  # before each line of a traceback
_LONGEST = 300  # characters of a cause
_ENDS_WITHIN = 10  # seconds after SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed.

    Attributes:
        failure: Why it failed, in one line; None after success.
    """

    failure: str | None
    output: str
    errors: str


def run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Ended:
    """Run a program. After `seconds` it is killed, with all that it has started."""
    # Files, because a pipe would stay open as long as any process of the program has it.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, env=environment, stdout=output, stderr=errors) as process:
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill(process)
        texts = []
        for each in (output, errors):
            each.seek(0)
            texts.append(each.read())
    if code is None:
        return Ended(f"it had not ended after {seconds:.0f} s", *texts)
    return Ended(f"it ended with {code}: {cause(texts[1])}" if code else None, *texts)


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def cause(errors: str) -> str:
    """What seems to be the first cause of a failure in what a program and its ranks have printed on stderr."""
    lines = [_RANK.sub("", line).strip() for line in errors.splitlines() if re.search(r"\w", line)]
    found = [after for line, after in pairwise(lines) if line == "Last error:"]  # that of NCCL
    found += [line for line in lines if _ERROR.match(line)]
    return (found or lines[-1:] or ["it printed no error"])[0][:_LONGEST]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    own: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(process.pid).children(recursive=True)  # in sessions of their own, too
    process.kill()
    for each in own:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(own, _ENDS_WITHIN)  # a GPU is free once they have ended
