"""Runs peers whose ranks are forks: for what does not measure their start.

forked LIBRARY    imports this module, and runs others with as many ranks as each line of its standard input asks for

Each library has a process of its own, which imports it once for all cases. In a process that has imported the libraries
of other peers as well, the allocator keeps more memory, and a loop is faster than its users have it.
"""

import functools
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from bench.processes import free_port

_CONTEXT = multiprocessing.get_context("fork")


def run(library: str, module: str, world: int, arguments: Sequence[str]) -> str:
    """What rank 0 of a module prints; all are forks of the library's process. Raises RuntimeError if one fails."""
    process = _process(library)
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps([module, world, arguments]), file=process.stdin, flush=True)
    if not (reply := process.stdout.readline()):
        raise RuntimeError(f"{module} with {world} ranks has failed")
    printed: str = json.loads(reply)
    return printed


@functools.cache
def _process(library: str) -> subprocess.Popen[str]:
    """It ends with this process, at the end of its standard input."""
    command = [sys.executable, "-m", "bench.peers.forked", library]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), file=replies, flush=True)


def _run(module: str, world: int, arguments: Sequence[str]) -> str:
    peer = importlib.import_module(module)
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    common |= {"TORCHELASTIC_RUN_ID": "forked"}  # by which Lightning knows that its ranks are started by another
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        ranks = [
            _CONTEXT.Process(
                target=_rank,
                args=(peer, arguments, common | {"RANK": rank, "LOCAL_RANK": rank}, os.devnull if rank else printed),
            )
            for rank in range(world)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        if any(each.exitcode for each in ranks):
            raise RuntimeError(f"{module} with {world} ranks ended with {[each.exitcode for each in ranks]}")
        return printed.read_text()


def _rank(peer: ModuleType, arguments: Sequence[str], environment: dict[str, object], output: str | Path) -> None:
    os.environ |= {name: str(value) for name, value in environment.items()}
    sys.argv = [peer.__name__, *arguments]
    with Path(output).open("w") as sys.stdout:
        peer.main()


if __name__ == "__main__":
    main()
