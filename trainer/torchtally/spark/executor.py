"""The functions that Spark runs on its executors.

Spark gets this module by value, so that it can report a missing package: its functions import inside themselves.
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

_REQUIRED = ("torchtally", "torch", "pandas", "pyarrow")
_CAUSE_SECONDS = 10  # for rank 0 to find the cause of a lost peer, and for that peer to be read


def describe(_: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """This executor's name, its Python and its versions of what a rank requires."""
    yield {"name": name(os.environ), "python": platform.python_version(), **versions()}


def versions() -> dict[str, str | None]:
    """The versions of what a rank requires; None for packages that are not installed."""
    found: dict[str, str | None] = {}
    for each in _REQUIRED:
        try:
            found[each] = importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            found[each] = None
    return found


def name(env: Mapping[str, str]) -> str:
    """The executor's host and number, as Spark on Kubernetes names its pods.

    A standalone cluster gives the number only in the URL of the executor's log.
    """
    host = socket.gethostname()
    in_url = re.search(r"executorId=(\w+)", env.get("SPARK_LOG_URL_STDOUT", ""))
    number = env.get("SPARK_EXECUTOR_ID") or (in_url[1] if in_url else "")
    return f"{host}-exec-{number}" if number and not host.endswith(f"-exec-{number}") else host


def train(
    task: list[str], run: str, output: str, marker: str, environment: Mapping[str, str], local: bool, max_bytes: int
) -> dict[str, Any] | None:
    """Run one rank of `task`, a name and its options; rank 0's return value reaches the driver.

    Rank 0 writes to `output` if this folder has the driver's `marker` file: the executor shares it. Otherwise rank 0
    writes to a temporary folder and returns the files, up to `max_bytes`.
    """
    from torchtally.commands import train
    from torchtally.environment import Process

    os.environ.update(environment)
    os.environ["TORCHTALLY_RUN"] = run
    if not local:
        os.environ["HOSTNAME"] = name(os.environ)
    process = Process.from_env(os.environ)
    shared = Path(output, marker).exists()
    folder = Path(output) if shared else Path(tempfile.gettempdir(), f"torchtally-{run}")
    sys.argv[1:] = [*task, "--output", str(folder)]
    tee = _Tee()
    with contextlib.redirect_stdout(tee):
        code = train.main()
    message = ""
    if code:
        code, message = find_cause(process, code)
        sys.stdout.flush()
        # Rank 0 has the cause, so this rank exits with 0, and at once: NCCL's communicators would wait for other ranks.
        atexit.register(os._exit, 0)
    if process.local_rank != 0:
        sys.exit(0)  # all ranks of a Spark task would write its one result to the same place
    if process.rank != 0:
        return None
    result = {"code": code, "message": message, "output": tee.getvalue(), "files": {}, "left_at": None}
    if not shared:
        result |= collect_files(folder, max_bytes) if not code else {}
        if not result["left_at"]:
            shutil.rmtree(folder, ignore_errors=True)
    return result


def collect_files(folder: Path, max_bytes: int) -> dict[str, Any]:
    """The contents of rank 0's files, or their place if they have more than `max_bytes`."""
    # MLflow's database refers to artifacts by absolute paths, which the driver does not have.
    files = [file for file in folder.iterdir() if file.is_file() and file.name != "mlflow.db"]
    if sum(file.stat().st_size for file in files) > max_bytes:
        return {"left_at": f"{name(os.environ)}:{folder}"}
    return {"files": {file.name: file.read_bytes() for file in files}}


def find_cause(process: Any, code: int) -> tuple[int, str]:
    """The exit code and the sentence of the failure that ended all ranks, as far as rank 0 can find it.

    TorchDistributor reports only that a rank failed. So a failed rank writes its cause to the job's store, and waits
    until rank 0 has read it. If rank 0 does not, the rank exits with its code, and Spark ends the others.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.rendezvous import rendezvous

    from torchtally.pod import failure

    written = ProcessFailure(process.local_rank, os.getpid(), code, os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    own = failure.of(process.rank, written, process.pod)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_CAUSE_SECONDS)))
        if process.rank:
            store.set(f"ended/{process.rank}", json.dumps([own.kind, own.code, own.text]))
            until = time.monotonic() + _CAUSE_SECONDS + 5
            try:
                store.wait(["ended/0"], timedelta(seconds=_CAUSE_SECONDS + 5))
            except DistError:
                sys.stdout.flush()
                if own.kind == failure.Kind.CONSEQUENCE:  # of rank 0's failure, which Spark must see first
                    time.sleep(max(0.0, until - time.monotonic()))
                os._exit(own.code)
        elif own.kind == failure.Kind.CONSEQUENCE:
            others = _failures_of_others(store, process.world)
            own = min([own, *(failure.Failure(*each) for each in others)], key=lambda each: each.kind)
        store.set("ended/0", "")
    except DistError:
        pass  # rank 0 hosted the store, and has ended
    return own.code, own.text.removeprefix(f"rank 0 ({process.pod}): ")  # the sentence may name another rank


def _failures_of_others(store: Any, world: int) -> list[list[Any]]:
    """The failures that other ranks have written; waits for a known cause, but not longer than _CAUSE_SECONDS."""
    until = time.monotonic() + _CAUSE_SECONDS
    while True:
        keys = [f"ended/{rank}" for rank in range(1, world) if store.check([f"ended/{rank}"])]
        found = [json.loads(store.get(key)) for key in keys]
        if time.monotonic() > until or len(found) == world - 1 or any(kind == 0 for kind, _, _ in found):
            return found
        time.sleep(0.1)


class _Tee(io.StringIO):
    """Standard output with a copy of everything written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._stdout = sys.stdout

    def write(self, text: str) -> int:
        self._stdout.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stdout.flush()
