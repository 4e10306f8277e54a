"""The driver: checks the arguments and the machines, has Spark run the ranks, and stores their result."""

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
from torchtally.log import log
from torchtally.pod import termination_message
from torchtally.spark import executor, java
from torchtally.spark.output import RankOutput

_LOG_FILE, _GPU_SCRIPT = "spark.log", ".gpus"  # in the output folder
_MAX_RESULT_BYTES = 256 << 20  # the result passes through the driver's JVM, whose heap is 1 GiB by default
# A user's own settings (--conf) override these.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONUNBUFFERED": "1",  # output arrives while the ranks train
    "spark.executorEnv.TORCHTALLY_OBSERVE": "never",  # tasks keep their own accounts
    "spark.dynamicAllocation.enabled": "false",  # a barrier stage needs all its executors at once
}
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_GPU_SETTINGS = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}


def main(argv: list[str], is_complete: Callable[[argparse.Namespace, Path], bool]) -> int:
    """Run `torchtally spark` with these arguments; returns the exit code (see errors.py)."""
    arguments = _parse(argv)
    task = tasks.parser("spark [options]").parse_args(arguments.task)
    try:
        output = (tasks.options_of(task).output or Places.from_env(os.environ).output).absolute()
        if is_complete(task, output):
            return OK
        check(arguments, os.environ)
        run = uuid.uuid4().hex[:12]
        with _marker(output, f".run-{run}") as marker:
            return _store(_run(arguments, output, run, marker), output)
    except Ending as ending:
        termination_message.announce(ending)
        return ending.code


def _parse(argv: list[str]) -> argparse.Namespace:
    """Spark's options, and in `task` the arguments after them: TASK and its options."""
    parser = argparse.ArgumentParser(
        prog="torchtally spark",
        usage="torchtally spark [--processes N] [--master URL] [--gpu] [--conf KEY=VALUE] [--wait X] TASK [options]",
        description="Train a task with pyspark's TorchDistributor: in barrier tasks of a Spark cluster, or without "
        f"--master in processes of this machine. Tasks: {', '.join(tasks.OPTIONS)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--processes",
        type=options.whole_number(1, 1 << 20),
        default=1,
        metavar="N",
        help="ranks (default: 1)",
    )
    parser.add_argument("--master", metavar="URL", help="Spark cluster: spark://HOST:PORT, k8s://…, yarn or local[N]")
    parser.add_argument("--gpu", action="store_true", help="give each rank a GPU (default: CPUs only)")
    parser.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="KEY=VALUE", help="Spark setting; repeatable"
    )
    parser.add_argument(
        "--wait",
        type=options.positive_number,
        default=60.0,
        metavar="X",
        help="seconds to wait for the master to answer, and then for enough slots (default: 60)",
    )
    parser.add_argument("task", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, e.g. spark.executor.memory=4g")
    return key, value


def check(arguments: argparse.Namespace, env: Mapping[str, str]) -> None:
    """Raise Refused for problems that show before Spark is started."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Refused("pyspark is not installed: pip install 'torchtally[spark]', or use an image with EXTRAS=spark")
    _check_packages("this machine", executor.versions())
    java.check(Path(found.origin).parent, env)
    if env.get("TORCHTALLY_DEVICE") == "cuda" and not arguments.gpu:
        raise Refused("TORCHTALLY_DEVICE=cuda needs --gpu, by which Spark assigns GPUs to ranks")
    if arguments.gpu and not arguments.master:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus < arguments.processes:
            raise Refused(
                f"--gpu needs a GPU for each of --processes {arguments.processes}, and this machine has {gpus}"
            )


@contextlib.contextmanager
def _marker(output: Path, name: str) -> Iterator[str]:
    """A file in the output folder that shows rank 0 whether it shares this folder. Raises Refused."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        marker = replace(output / name, b"")
    except OSError as error:
        raise Refused(f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}") from None
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def _run(arguments: argparse.Namespace, output: Path, run: str, marker: str) -> dict[str, Any]:
    """Train, and return rank 0's result. Raises Ending."""
    from pyspark import cloudpickle
    from pyspark.ml.torch.distributor import TorchDistributor

    from torchtally.spark import cluster

    master, processes = arguments.master, arguments.processes
    address = cluster.wait_for_master(master, arguments.wait) if master else None
    cloudpickle.register_pickle_by_value(executor)  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # about versions of pandas
    logging.getLogger("TorchDistributor").addHandler(logging.NullHandler())  # without one it adds its own
    environment = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    environment["TORCHTALLY_DEVICE"] = "cuda" if arguments.gpu else "cpu"
    if not master:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, loky.cpu_count() // processes)))
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    spark_log = output / _LOG_FILE
    rank_output = RankOutput(sys.stdout)
    executors: list[str] = []
    with _session(arguments, address, spark_log) as session:
        try:
            if master:
                cluster.wait_for_slots(session, master, processes, arguments.wait)
                executors = _check_executors(session, processes)
            log.info(f"run {run}: {processes} rank{'s' * (processes > 1)} on {master or 'this machine'}")
            distributor = TorchDistributor(processes, local_mode=not master, use_gpu=arguments.gpu)
            with contextlib.redirect_stdout(rank_output), contextlib.redirect_stderr(rank_output):
                result = distributor.run(
                    executor.train, arguments.task, run, str(output), marker, environment, not master, _MAX_RESULT_BYTES
                )
        except Exception as error:
            if _Stopped.last:
                raise _Stopped.last from None
            if isinstance(error, Ending):
                raise
            with contextlib.suppress(OSError), spark_log.open("a") as file:
                file.write(f"{error}\n")
            ending = cluster.cause_of(error, executors)
            ending.args = (f"{ending} (Spark's log: {spark_log})",)
            raise ending from None
        assert isinstance(result, dict)
        rank_output.add_missing(result["output"])
        return result


def _check_executors(session: Any, processes: int) -> list[str]:
    """Check the packages of each executor; returns their names. Raises Refused."""
    context = session.sparkContext
    found = context.parallelize(range(processes), processes).barrier().mapPartitions(executor.describe).collect()
    own = executor.versions()
    for each in found:
        _check_packages(f"the executor {each['name']} (Python {each['python']})", each)
        if each["torchtally"] != own["torchtally"]:
            raise Refused(
                f"the executor {each['name']} has torchtally {each['torchtally']} and the driver {own['torchtally']}: "
                "they must be the same"
            )
    names = sorted({each["name"] for each in found})
    log.info(f"executors: {', '.join(names)}")
    return names


def _check_packages(where: str, versions: Mapping[str, str | None]) -> None:
    if missing := [name for name, version in versions.items() if version is None]:
        raise Refused(f"{where} lacks {', '.join(missing)}: pip install 'torchtally[spark]' there, or use one image")


@contextlib.contextmanager
def _session(arguments: argparse.Namespace, address: str | None, spark_log: Path) -> Iterator[Any]:
    """A Spark session whose JVM writes to `spark_log`. A signal ends it. Raises Refused.

    Executors connect to the driver at `address`.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _SETTINGS | ({"spark.driver.host": address} if address else {})
    if not arguments.master:
        settings |= _LOCAL_SETTINGS | (_local_gpus(spark_log.parent, arguments.processes) if arguments.gpu else {})
    elif arguments.gpu:
        settings |= _GPU_SETTINGS
    builder = SparkSession.builder.appName("torchtally").master(arguments.master or "local[1]")
    for key, value in (settings | dict(arguments.conf)).items():
        builder = builder.config(key, value)
    try:
        with java.redirected_to(spark_log):
            session = builder.getOrCreate()
        (spark_log.parent / _GPU_SCRIPT).unlink(missing_ok=True)
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refused(f"Spark did not start: {first} (Spark's log: {spark_log})") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception), java.redirected_to(Path(os.devnull)):
            session.stop()


def _local_gpus(folder: Path, processes: int) -> dict[str, str]:
    """Settings that give Spark this machine's first GPUs, which it learns from a discovery script."""
    script = folder / _GPU_SCRIPT
    found = {"name": "gpu", "addresses": [str(number) for number in range(processes)]}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    script.chmod(0o755)
    gpu = "spark.driver.resource.gpu"
    return {f"{gpu}.amount": str(processes), f"{gpu}.discoveryScript": str(script)}


class _Stopped(Ending):
    """A signal has stopped the driver, and Spark ends the ranks."""

    last: ClassVar["_Stopped | None"] = None  # py4j replaces an exception that is raised during a call


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the driver at once
    logging.getLogger("py4j").propagate = False  # it would log a traceback
    stopped = _Stopped(f"the driver was stopped by signal {number}, and all ranks with it; checkpoints remain")
    stopped.code = SIGNALLED + number
    _Stopped.last = stopped
    raise stopped


def _store(result: Mapping[str, Any], output: Path) -> int:
    """Write the files that rank 0 returned; returns the exit code. Raises Volume."""
    files: dict[str, bytes] = result["files"]
    try:
        for name in sorted(files, key=lambda name: name == "proof.json"):  # the proof comes last: it marks completion
            replace(output / name, files[name])
    except OSError as error:
        raise Volume(f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}") from None
    if files:
        log.info(f"copied {', '.join(sorted(files))} to {output}")
    if result["left_at"]:
        limit = f"{_MAX_RESULT_BYTES >> 20} MiB"
        log.info(f"the files exceed {limit}, the most that is copied through Spark, and remain at {result['left_at']}")
    if result["code"]:
        termination_message.announce(result["message"])
    return int(result["code"])
