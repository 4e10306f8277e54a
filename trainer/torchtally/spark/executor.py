"""What Spark runs on its executors.

This module is pickled by value, so that it can say what is missing there: its functions import inside themselves.
"""

import atexit
import contextlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

_NEEDED = ("torchtally", "torch", "pandas", "pyarrow")
_SEARCH = 10  # seconds in which rank 0 looks for what ended another one, and the other one waits to be heard


def look(_: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Who this executor is, and the versions of what a rank needs, None for what is not installed."""
    yield {"name": name(os.environ), "python": platform.python_version(), **versions()}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for each in _NEEDED:
        try:
            found[each] = importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            found[each] = None
    return found


def name(env: Mapping[str, str]) -> str:
    """The executor's host and number, as Spark on Kubernetes names its pods; Spark tells the number in passing."""
    host = socket.gethostname()
    told = re.search(r"executorId=(\w+)", env.get("SPARK_LOG_URL_STDOUT", ""))
    number = env.get("SPARK_EXECUTOR_ID") or (told[1] if told else "")
    return f"{host}-exec-{number}" if number and not host.endswith(f"-exec-{number}") else host


def train(
    task: list[str], run: str, output: str, mark: str, environment: Mapping[str, str], local: bool, most: int
) -> dict[str, Any] | None:
    """One rank of `task`, which is its name and options; what is returned on rank 0 gets to the driver.

    Where `output` is the driver's folder, which holds the file `mark`, rank 0 writes there. Else it writes into a
    folder of its own, and returns the files that make `most` bytes at most.
    """
    from torchtally.commands import train
    from torchtally.environment import Process

    os.environ.update(environment)
    os.environ["TORCHTALLY_RUN"] = run
    if not local:
        os.environ["HOSTNAME"] = name(os.environ)
    process = Process.from_env(os.environ)
    shared = Path(output, mark).exists()
    folder = Path(output) if shared else Path(tempfile.gettempdir(), f"torchtally-{run}")
    sys.argv[1:] = [*task, "--output", str(folder)]
    kept = _Kept()
    with contextlib.redirect_stdout(kept):
        code = train.main()
    sentence = ""
    if code:
        code, sentence = cause(process, code)
        sys.stdout.flush()
        # Word of it is out, so the rank ends well; and at once, as NCCL's communicators would wait for other ranks.
        atexit.register(os._exit, 0)
    if process.local_rank != 0:
        sys.exit(0)  # a task has one result, and all its ranks would write it to the same place
    if process.rank != 0:
        return None
    result = {"code": code, "sentence": sentence, "said": kept.getvalue(), "files": {}, "left": None}
    if not shared:
        result |= taken_along(folder, most) if not code else {}
        if not result["left"]:
            shutil.rmtree(folder, ignore_errors=True)
    return result


def taken_along(folder: Path, most: int) -> dict[str, Any]:
    """The files that rank 0 wrote; where they are too large for Spark to carry, their place alone."""
    # MLflow's own store names its files by their place, so it is of no use elsewhere.
    files = [file for file in folder.iterdir() if file.is_file() and file.name != "mlflow.db"]
    if sum(file.stat().st_size for file in files) > most:
        return {"left": f"{name(os.environ)}:{folder}"}
    return {"files": {file.name: file.read_bytes() for file in files}}


def cause(process: Any, code: int) -> tuple[int, str]:
    """Exit code and sentence of what ended all ranks, as far as rank 0 can learn it.

    TorchDistributor tells of a rank that failed no more than that it did. So a rank leaves word in the job's store and
    waits until rank 0 has read it; if that does not come, the rank fails, and Spark ends the others.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.rendezvous import rendezvous

    from torchtally.pod import failure

    written = ProcessFailure(process.local_rank, os.getpid(), code, os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    own = failure.of(process.rank, written, process.pod)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_SEARCH)))
        if process.rank:
            store.set(f"ended/{process.rank}", json.dumps([own.kind, own.code, own.text]))
            until = time.monotonic() + _SEARCH + 5
            try:
                store.wait(["ended/0"], timedelta(seconds=_SEARCH + 5))
            except DistError:
                sys.stdout.flush()
                if own.kind == failure.Kind.CONSEQUENCE:  # of rank 0's end: Spark has to hear of that first
                    time.sleep(max(0.0, until - time.monotonic()))
                os._exit(own.code)
        elif own.kind == failure.Kind.CONSEQUENCE:
            others = _others(store, process.world)
            own = min([own, *(failure.Failure(*each) for each in others)], key=lambda each: each.kind)
        store.set("ended/0", "")
    except DistError:
        pass  # the store was rank 0's, which has ended
    return own.code, own.text.removeprefix(f"rank 0 ({process.pod}): ")  # for all, and may name a rank itself


def _others(store: Any, world: int) -> list[list[Any]]:
    """What other ranks have left word of; waits for one that is no consequence of another's end."""
    until = time.monotonic() + _SEARCH
    while True:
        came = [f"ended/{rank}" for rank in range(1, world) if store.check([f"ended/{rank}"])]
        found = [json.loads(store.get(key)) for key in came]
        if time.monotonic() > until or len(found) == world - 1 or any(kind == 0 for kind, _, _ in found):
            return found
        time.sleep(0.1)


class _Kept(io.StringIO):
    """Standard output, which keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._through = sys.stdout

    def write(self, text: str) -> int:
        self._through.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._through.flush()
