"""The driver: checks what can be checked before, has Spark run the ranks, and keeps what comes back."""

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import signal
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import loky

from torchtally import options, tasks
from torchtally.atomic_file import replace
from torchtally.environment import Places
from torchtally.errors import OK, SIGNALLED, Ending, Refused, Volume
from torchtally.pod import termination_message
from torchtally.spark import executor, java
from torchtally.spark.heard import Heard

_LOG, _GPUS = "spark.log", ".gpus"  # in the output folder
_MOST = 256 << 20  # bytes that come back by value: they pass through the driver's JVM, whose heap is 1 GiB by default
# What a user's own settings (--conf) take precedence over.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONUNBUFFERED": "1",  # progress that comes as it is made
    "spark.dynamicAllocation.enabled": "false",  # a barrier stage needs all its executors at once
}
_SETTINGS_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_SETTINGS_GPU = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}


def main(argv: list[str], is_complete: Callable[[argparse.Namespace, Path], bool]) -> int:
    """Run `torchtally spark` with these arguments; returns the exit code (see errors.py)."""
    ours, task = _parse(argv)
    arguments = tasks.parser("spark [options]").parse_args(task)
    try:
        output = (tasks.chosen(arguments).output or Places.from_env(os.environ).output).absolute()
        if is_complete(arguments, output):
            return OK
        return _drive(ours, task, output)
    except Ending as ending:
        termination_message.say(ending)
        return ending.code


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what follows them: TASK and its options."""
    parser = argparse.ArgumentParser(
        prog="torchtally spark",
        usage="torchtally spark [--processes N] [--master URL] [--gpu] [--conf KEY=VALUE] [--wait X] TASK [options]",
        description="Train a task with pyspark's TorchDistributor: without --master by processes of this machine, else "
        f"by as many barrier tasks of a Spark cluster. Tasks: {', '.join(tasks.OPTIONS)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--processes", type=options.whole(1, 1 << 20), default=1, metavar="N", help="ranks (default: 1)"
    )
    parser.add_argument("--master", metavar="URL", help="of the cluster: spark://HOST:PORT, k8s://…, yarn or local[N]")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each rank (default CPUs)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of Spark; repeatable",
    )
    parser.add_argument(
        "--wait",
        type=options.positive,
        default=60.0,
        metavar="X",
        help="seconds in which the master must answer, and then offer enough slots (default 60)",
    )
    parser.add_argument("task", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    ours = parser.parse_args(argv)
    return ours, ours.task


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, e.g. spark.executor.memory=4g")
    return key, value


def _drive(ours: argparse.Namespace, task: list[str], output: Path) -> int:
    check(ours, os.environ)
    run = uuid.uuid4().hex[:12]
    with _marked(output, f".run-{run}") as mark:
        result = _run(ours, task, output, run, mark)
        return _keep(result, output)


def check(ours: argparse.Namespace, env: Mapping[str, str]) -> None:
    """Raise Refused for what is known to be in vain before Spark is started."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Refused(
            "pyspark is not installed: `pip install 'torchtally[spark]'`, or an image built with EXTRAS=spark"
        )
    _refuse_missing("this machine", executor.versions())
    java.check(Path(found.origin).parent, env)
    if env.get("TORCHTALLY_DEVICE") == "cuda" and not ours.gpu:
        raise Refused("TORCHTALLY_DEVICE=cuda asks for GPUs, which Spark hands out with --gpu alone")
    if ours.gpu and not ours.master:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus < ours.processes:
            raise Refused(f"--gpu needs a GPU for each of --processes {ours.processes}, and this machine has {gpus}")


@contextlib.contextmanager
def _marked(output: Path, name: str) -> Iterator[str]:
    """A file in the output folder, by which rank 0 knows whether it sees the same folder. Raises Refused."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        mark = replace(output / name, b"")
    except OSError as error:
        raise Refused(f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}") from None
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def _run(ours: argparse.Namespace, task: list[str], output: Path, run: str, mark: str) -> dict[str, Any]:
    """Rank 0's result."""
    from pyspark import cloudpickle
    from pyspark.ml.torch.distributor import TorchDistributor

    from torchtally.spark import cluster

    address = cluster.wait_for_master(ours.master, ours.wait) if ours.master else None
    cloudpickle.register_pickle_by_value(executor)  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of a pandas that works well enough
    logging.getLogger("TorchDistributor").addHandler(logging.NullHandler())  # else it makes one that tells what we tell
    log = output / _LOG
    heard = Heard(sys.stdout)
    environment = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    environment["TORCHTALLY_DEVICE"] = "cuda" if ours.gpu else "cpu"
    local = not ours.master
    if local:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, loky.cpu_count() // ours.processes)))
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    executors: list[str] = []
    with _session(ours, address, log) as session:
        try:
            if not local:
                cluster.wait_for_slots(session, ours.master, ours.processes, ours.wait)
                executors = _look(session, ours.processes)
            _say(f"run {run}: {ours.processes} rank{'s' * (ours.processes > 1)} on {ours.master or 'this machine'}")
            distributor = TorchDistributor(ours.processes, local_mode=local, use_gpu=ours.gpu)
            with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
                result = distributor.run(executor.train, task, run, str(output), mark, environment, local, _MOST)
        except Exception as error:
            if _Stopped.last:
                raise _Stopped.last from None
            if isinstance(error, Ending):
                raise
            with contextlib.suppress(OSError), log.open("a") as whole:
                whole.write(f"{error}\n")
            ended = cluster.ending(error, executors)
            ended.args = (f"{ended} (Spark's log: {log})",)
            raise ended from None
        assert isinstance(result, dict)
        heard.complete(result["said"])
        return result


def _look(session: Any, processes: int) -> list[str]:
    """Ask each executor for what a rank needs; returns their names. Raises Refused."""
    context = session.sparkContext
    found = context.parallelize(range(processes), processes).barrier().mapPartitions(executor.look).collect()
    own = executor.versions()
    for each in found:
        _refuse_missing(f"the executor {each['name']} (Python {each['python']})", each)
        if each["torchtally"] != own["torchtally"]:
            raise Refused(
                f"the executor {each['name']} has torchtally {each['torchtally']} and the driver {own['torchtally']}: "
                "they must be the same"
            )
    names = sorted({each["name"] for each in found})
    _say(f"executors: {', '.join(names)}")
    return names


def _refuse_missing(where: str, found: Mapping[str, str | None]) -> None:
    if missing := [name for name, version in found.items() if version is None]:
        raise Refused(f"{where} lacks {', '.join(missing)}: `pip install 'torchtally[spark]'` there, or the same image")


@contextlib.contextmanager
def _session(ours: argparse.Namespace, address: str | None, log: Path) -> Iterator[Any]:
    """A session whose JVM writes to `log`, and which a signal ends; executors find it at `address`. Raises Refused."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _SETTINGS | ({"spark.driver.host": address} if address else {})
    if not ours.master:
        settings |= _SETTINGS_LOCAL | (_gpus_here(log.parent, ours.processes) if ours.gpu else {})
    elif ours.gpu:
        settings |= _SETTINGS_GPU
    builder = SparkSession.builder.appName("torchtally").master(ours.master or "local[1]")
    for key, value in (settings | dict(ours.conf)).items():
        builder = builder.config(key, value)
    try:
        with java.logs_to(log):
            session = builder.getOrCreate()
        (log.parent / _GPUS).unlink(missing_ok=True)
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refused(f"Spark did not start: {first} (Spark's log: {log})") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception), java.logs_to(Path(os.devnull)):
            session.stop()


def _gpus_here(folder: Path, processes: int) -> dict[str, str]:
    """Settings by which Spark finds this machine's first GPUs; it asks a program for them."""
    script = folder / _GPUS
    found = {"name": "gpu", "addresses": [str(number) for number in range(processes)]}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    script.chmod(0o755)
    gpu = "spark.driver.resource.gpu"
    return {f"{gpu}.amount": str(processes), f"{gpu}.discoveryScript": str(script)}


class _Stopped(Ending):
    """A signal to the driver: Spark ends the ranks."""

    last: ClassVar["_Stopped | None"] = None  # py4j, where it is raised there, makes an error of its own of it


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the driver at once
    logging.disable()  # py4j would log a traceback
    stopped = _Stopped(f"the driver was stopped by signal {number}, and with it all ranks; checkpoints stay")
    stopped.code = SIGNALLED + number
    _Stopped.last = stopped
    raise stopped


def _keep(result: Mapping[str, Any], output: Path) -> int:
    """Write the files that came back; say where the others are. Returns the exit code."""
    files: dict[str, bytes] = result["files"]
    try:
        for name in sorted(files, key=lambda name: name == "proof.json"):  # last: it says that all is there
            replace(output / name, files[name])
    except OSError as error:
        raise Volume(f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}") from None
    if files:
        _say(f"{', '.join(sorted(files))} came back to {output}")
    if result["left"]:
        _say(f"the files are more than {_MOST >> 20} MiB, too much for Spark to carry, and stay at {result['left']}")
    if result["code"]:
        termination_message.say(result["sentence"])
    return int(result["code"])


def _say(line: str) -> None:
    print(f"torchtally: {line}", file=sys.stderr, flush=True)
