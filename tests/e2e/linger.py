"""Mounted as sitecustomize.py, which every Python runs first: the master's agent, its work done, stays until killed."""

import os
import socket
import time
from pathlib import Path
from typing import NoReturn

_end = os._exit  # the last that an agent calls, and each process that it forks
_agent = os.getpid()


def linger(code: int) -> NoReturn:
    again = Path("/output/lingered")
    if os.getpid() == _agent and not again.exists():
        again.touch()
        time.sleep(3600)
    _end(code)


if os.getppid() == 1 and socket.gethostname().endswith("-master-0"):  # the child of PID 1 is the agent
    os._exit = linger
