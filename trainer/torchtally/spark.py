"""`torchtally spark`: built-in tasks whose ranks pyspark's TorchDistributor starts."""

import argparse
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import loky

from torchtally import options, tasks
from torchtally.console import Parser
from torchtally.environment import Places
from torchtally.errors import FAILED, OK, SIGNALLED, Ending, Refused, require
from torchtally.log import log
from torchtally.pod import termination_message

# A user's own settings (--conf) override these.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONUNBUFFERED": "1",  # output arrives while the ranks train
    "spark.executorEnv.TORCHTALLY_OBSERVE": "never",  # tasks keep their own accounts
    "spark.dynamicAllocation.enabled": "false",  # a barrier stage needs all its executors at once
    # Spark looks every 15 s by default, 40 times.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "60",
}
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_GPU_SETTINGS = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}


class SparkFailed(Ending):
    """Spark, or a rank, failed: the first line of Spark's error."""

    code = FAILED


def main(argv: list[str], is_complete: Callable[[argparse.Namespace, Path], bool]) -> int:
    """Run `torchtally spark` with these arguments; returns the exit code (see errors.py)."""
    arguments = _parse(argv)
    task = tasks.parser("spark [options]").parse_args(arguments.task)
    try:
        output = (tasks.options_of(task).output or Places.from_env(os.environ).output).absolute()
        if not is_complete(task, output):
            _run(arguments, output)
    except Ending as ending:
        termination_message.announce(ending)
        return ending.code
    return OK


def _parse(argv: list[str]) -> argparse.Namespace:
    """Spark's options, and in `task` the arguments after them: TASK and its options."""
    parser = Parser(
        prog="torchtally spark",
        usage="torchtally spark [--processes N] [--master URL] [--gpu] [--conf KEY=VALUE] TASK [options]",
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
    parser.add_argument("task", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, e.g. spark.executor.memory=4g")
    return key, value


def _run(arguments: argparse.Namespace, output: Path) -> None:
    """Train. Raises Ending."""
    if os.environ.get("TORCHTALLY_DEVICE") == "cuda" and not arguments.gpu:
        raise Refused("TORCHTALLY_DEVICE=cuda needs --gpu, by which Spark assigns GPUs to ranks")
    require("pyspark", "`torchtally spark` needs", "spark")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}") from None
    environment = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    environment["TORCHTALLY_DEVICE"] = "cuda" if arguments.gpu else "cpu"
    if not arguments.master:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, loky.cpu_count() // arguments.processes)))
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # about versions of pandas
    logging.getLogger("TorchDistributor").addHandler(logging.NullHandler())  # without one it adds its own
    spark_log = output / "spark.log"
    task = [*arguments.task, "--output", str(output)]
    try:
        with _session(arguments, spark_log):
            from pyspark.ml.torch.distributor import TorchDistributor

            plural = "s" * (arguments.processes > 1)
            log.info(f"{arguments.processes} rank{plural} on {arguments.master or 'this machine'}")
            distributor = TorchDistributor(arguments.processes, local_mode=not arguments.master, use_gpu=arguments.gpu)
            with contextlib.redirect_stderr(sys.stdout):  # where it prints what the ranks of a cluster print
                host = distributor.run(train, task, environment)
    except Exception as error:
        if _Stopped.last:
            raise _Stopped.last from None
        with contextlib.suppress(OSError), spark_log.open("a") as file:
            file.write(f"{error}\n")
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SparkFailed(f"Spark: {first} (the whole error and Spark's log: {spark_log})") from None
    if not (output / "proof.json").exists():
        log.info(f"the model and its proof are in {output} of {host}, a folder that the driver does not share")


@contextlib.contextmanager
def _session(arguments: argparse.Namespace, spark_log: Path) -> Iterator[None]:
    """A Spark session whose JVM writes to `spark_log`. A signal ends it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _SETTINGS | (_GPU_SETTINGS if arguments.gpu else {}) | ({} if arguments.master else _LOCAL_SETTINGS)
    builder = SparkSession.builder.appName("torchtally").master(arguments.master or "local[1]")
    for key, value in (settings | dict(arguments.conf)).items():
        builder = builder.config(key, value)
    with _redirected_to(spark_log):
        session = builder.getOrCreate()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        yield
    finally:
        with contextlib.suppress(Exception), _redirected_to(Path(os.devnull)):
            session.stop()


@contextlib.contextmanager
def _redirected_to(file: Path) -> Iterator[None]:
    """Redirect standard output and error to `file`, for this process and for those that it starts meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = [(stream, os.dup(stream)) for stream in (1, 2)]
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for stream, _ in originals:
            os.dup2(log, stream)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, original in originals:
            os.dup2(original, stream)
            os.close(original)
        os.close(log)


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


def train(task: list[str], environment: Mapping[str, Any]) -> str:
    """Run one rank of `task`, a name and its options, on an executor. Returns the executor's name."""
    from torchtally.commands import train
    from torchtally.pod.failure import exit_rank

    os.environ.update(environment)
    os.environ["HOSTNAME"] = executor(os.environ)
    sys.argv[1:] = task
    code = train.main()
    if code or os.environ["LOCAL_RANK"] != "0":  # one result of each executor: TorchDistributor sees no exit codes
        exit_rank(code)
    return os.environ["HOSTNAME"]


def executor(env: Mapping[str, str]) -> str:
    """The executor's host and number, as Spark on Kubernetes names its pods.

    A standalone cluster gives the number only in the URL of the executor's log.
    """
    host = socket.gethostname()
    in_url = re.search(r"executorId=(\w+)", env.get("SPARK_LOG_URL_STDOUT", ""))
    number = env.get("SPARK_EXECUTOR_ID") or (in_url[1] if in_url else "")
    return f"{host}-exec-{number}" if number and not host.endswith(f"-exec-{number}") else host
