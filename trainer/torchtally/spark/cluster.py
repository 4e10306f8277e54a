"""The Spark cluster from the driver's view: its availability, its slots, and the causes of failed jobs."""

import re
import socket
import time
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from torchtally.errors import FAILED, Ending, Lost, Refused
from torchtally.log import log

_FIRST_NOTICE, _NOTICE_INTERVAL = 5, 30  # seconds


class SparkFailed(Ending):
    """Spark failed for an unknown reason: one sentence with the first line of its error."""

    code = FAILED


def wait_for_master(url: str, seconds: float) -> str | None:
    """Wait until a master of a standalone cluster accepts connections. Raises Refused, and Lost after `seconds`.

    Spark would retry for a minute and then return a session that fails at its first use.

    Returns this machine's address on the route to the master. Spark would give executors the host name, which a pod's
    peers cannot resolve. Returns None, without a check, for other types of clusters.
    """
    if not url.startswith("spark://"):
        return None
    masters = [each.rpartition(":") for each in url.removeprefix("spark://").split(",")]
    if not all(host and port.isdecimal() and 0 < int(port) < 65536 for host, _, port in masters):
        raise Refused(f"--master {url} must be spark://HOST:PORT, with a port from 1 to 65535")
    deadline = _Deadline(seconds)
    while True:
        for host, _, port in masters:
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection:
                    address: str = connection.getsockname()[0]
                    return address
            except OSError as error:
                cause = error
        if not deadline.pause(f"the Spark master {url}: {cause}"):
            raise Lost(f"no Spark master answers at {url} within {seconds:g} s: {cause}")


def wait_for_slots(session: SparkSession, master: str, processes: int, seconds: float) -> None:
    """Wait until all ranks can run at once, as a barrier stage requires. Raises Refused or Lost after `seconds`."""
    deadline = _Deadline(seconds)
    while (slots := _slots(session)) < processes:
        if deadline.pause(f"{processes} slots of {master}, which offers {slots}"):
            continue
        if not slots:
            driver = session.sparkContext.getConf().get("spark.driver.host")
            raise Lost(
                f"no executor of {master} registered within {seconds:g} s: no worker has the cores, memory and GPUs "
                "that an executor needs (spark.executor.*), other applications use them, or executors cannot reach "
                f"the driver at {driver} (spark.driver.host)"
            )
        cpus = session.sparkContext.getConf().get("spark.task.cpus", "1")
        raise Refused(
            f"--processes {processes} must be at most {slots}, the slots that {master} offers after {seconds:g} s "
            f"(a slot is spark.task.cpus={cpus} of an executor's cores)"
        )


def cause_of(error: Exception, executors: Iterable[str]) -> Ending:
    """The cause of an exception of Spark as one sentence; `executors` are names as executor.name() makes them."""
    text = str(error)
    task = re.search(r"barrier task ResultTask\(\d+, (\d+)\) finished unsuccessfully", text)
    if found := re.search(r"ExecutorLostFailure \(executor (\S+) exited .*?\)(?: Reason: (.*))?$", text, re.MULTILINE):
        number, reason = found.groups()
        name = next((each for each in executors if each.endswith(f"-exec-{number}")), number)
        rank = f" of rank {task[1]}" if task else ""
        why = f" ({reason.strip().rstrip('.')})" if reason else ""
        return Lost(
            f"the executor {name}{rank} went away{why}; Spark does not start a barrier stage again: another start "
            "resumes from the newest checkpoint, if the executors share the output folder"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return Refused(next(line.strip() for line in text.splitlines() if "PYTHON_VERSION_MISMATCH" in line))
    if found := re.search(r'Cannot run program "(.*?)"', text):
        return Refused(f"the executors have no program {found[1]}: set PYSPARK_PYTHON to their Python")
    if found := re.search(r"ModuleNotFoundError: No module named '(.*?)'", text):
        return Refused(f"the executors' Python lacks {found[1]} (PYSPARK_PYTHON selects the Python)")
    if "TorchDistributor" in text:  # a rank that can still report does so to rank 0, which returns it
        return Lost(f"{f'rank {task[1]}' if task else 'a rank'} ended without reporting a cause; its output is above")
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return SparkFailed(f"Spark: {first}")


def _slots(session: SparkSession) -> int:
    """The number of tasks that can run at once, from the call by which Spark admits a barrier stage."""
    context: Any = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


class _Deadline:
    """A limit on polling, with a message now and then."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._next_notice = time.monotonic() + _FIRST_NOTICE

    def pause(self, awaited: str) -> bool:
        """Sleep until the next poll; returns whether time is left."""
        now = time.monotonic()
        if now > self._next_notice:
            log.info(f"waiting for {awaited}")
            self._next_notice = now + _NOTICE_INTERVAL
        time.sleep(0.2)
        return now < self._end
