"""The cluster as the driver sees it: whether it answers, how many ranks it can run at once, and what ended them."""

import re
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from torchtally.errors import FAILED, Ending, Lost, Refused

_NEWS = 5, 30  # seconds until it is said for what is waited, and until it is said again


class Failed(Ending):
    """Spark failed, and no more is known: one sentence with what it says."""

    code = FAILED


def wait_for_master(url: str, seconds: float) -> str | None:
    """Wait until one of the masters of a standalone cluster takes connections. Raises Refused, and Lost in the end.

    Returns the address of this machine's that leads there: Spark would tell executors its name, which a pod's peers
    cannot resolve. And Spark would try for a minute, and then leave a session that fails at the first use. Of other
    clusters nothing is asked here.
    """
    if not url.startswith("spark://"):
        return None
    masters = [each.rpartition(":") for each in url.removeprefix("spark://").split(",")]
    if not all(host and port.isdecimal() and 0 < int(port) < 65536 for host, _, port in masters):
        raise Refused(f"--master {url} must be spark://HOST:PORT, with a port from 1 to 65535")
    wait = _Wait(seconds)
    while True:
        for host, _, port in masters:
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection:
                    address: str = connection.getsockname()[0]
                    return address
            except OSError as error:
                why = error
        if not wait.goes_on(f"the Spark master {url}: {why}"):
            raise Lost(f"no Spark master answers at {url} within {seconds:g} s: {why}")


def wait_for_slots(session: SparkSession, master: str, processes: int, seconds: float) -> None:
    """Wait until all ranks can run at once, as the tasks of a barrier stage must. Raises Refused or Lost in the end."""
    wait = _Wait(seconds)
    while (slots := _slots(session)) < processes:
        have = f"{slots} slot{'' if slots == 1 else 's'}"
        if not wait.goes_on(f"{processes} slots of {master}, which gives {have}"):
            if not slots:
                driver = session.sparkContext.getConf().get("spark.driver.host")
                raise Lost(
                    f"no executor came from {master} within {seconds:g} s: it has no worker with the cores, memory and "
                    "GPUs that an executor is to have (spark.executor.*), or other applications have them, or none "
                    f"reaches the driver at {driver} (spark.driver.host)"
                )
            cpus = session.sparkContext.getConf().get("spark.task.cpus", "1")
            raise Refused(
                f"--processes {processes} must be at most what {master} runs at once, and within {seconds:g} s it gave "
                f"{have} (a slot: spark.task.cpus={cpus} of an executor's cores)"
            )


def ending(error: Exception, executors: Iterable[str]) -> Ending:
    """What an exception of Spark's means, in one sentence; `executors` are named as executor.name() does."""
    text = str(error)
    task = re.search(r"barrier task ResultTask\(\d+, (\d+)\) finished unsuccessfully", text)
    if found := re.search(r"ExecutorLostFailure \(executor (\S+) exited .*?\)(?: Reason: (.*))?$", text, re.MULTILINE):
        number, reason = found.groups()
        name = next((each for each in executors if each.endswith(f"-exec-{number}")), number)
        rank = f" of rank {task[1]}" if task else ""
        why = f" ({reason.strip().rstrip('.')})" if reason else ""
        return Lost(
            f"the executor {name}{rank} went away{why}; Spark does not start a barrier stage again: another start goes "
            "on from the newest checkpoint, if the executors see the output folder"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return Refused(next(line.strip() for line in text.splitlines() if "PYTHON_VERSION_MISMATCH" in line))
    if found := re.search(r'Cannot run program "(.*?)"', text):
        return Refused(f"the executors have no program {found[1]}: set PYSPARK_PYTHON to their Python")
    if found := re.search(r"ModuleNotFoundError: No module named '(.*?)'", text):
        return Refused(f"the executors' Python lacks {found[1]} (PYSPARK_PYTHON names it)")
    if "TorchDistributor" in text:  # a rank that can still speak tells rank 0, which returns it
        return Lost(f"{f'rank {task[1]}' if task else 'a rank'} went away without a word; what it printed is above")
    return Failed(f"Spark: {next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)}")


def _slots(session: SparkSession) -> int:
    """How many tasks can run at once; Spark asks itself just so before a barrier stage."""
    context: Any = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


class _Wait:
    """For up to `seconds`, with a word now and then."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._next = time.monotonic() + _NEWS[0]

    def goes_on(self, for_what: str) -> bool:
        """Pause; returns whether there is time left."""
        now = time.monotonic()
        if now > self._next:
            print(f"torchtally: waiting for {for_what}", file=sys.stderr, flush=True)
            self._next = now + _NEWS[1]
        time.sleep(0.2)
        return now < self._end
