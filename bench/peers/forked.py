"""Runs a peer with ranks that are forks of this process: for what does not measure its start."""

import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from bench.processes import free_port

_CONTEXT = multiprocessing.get_context("fork")  # PyTorch and the peer's library are imported once for all cases


def run(module: str, world: int, arguments: Sequence[str]) -> str:
    """What rank 0 prints. Raises RuntimeError if a rank fails."""
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
