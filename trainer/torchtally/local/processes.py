"""A pod as a process of this machine, in the hands of its shim."""

import asyncio
import json
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from torchtally.inject import observer
from torchtally.inject.observer import PATH
from torchtally.local import environment, machine
from torchtally.local.job import LocalJob, Pod
from torchtally.local.unsupported import Support

# A CPU limit has an effect where the system can bind a process to cores.
SUPPORTED = Support(limits=frozenset({"cpu"} if hasattr(os, "sched_setaffinity") else ()))
_SHIM = Path(__file__).with_name("shim.py")


class Processes:
    """Runs the command of each pod as it is found on PATH; all pods share this machine's files and its loopback."""

    def __init__(self, job: LocalJob, entrypoint: str) -> None:
        self._job = job
        self._entrypoint = shlex.split(entrypoint)
        self.network = environment.loopback(job, machine.ports())
        self.gpus = machine.gpus()
        self._visible_gpus = machine.visible_gpus(job.pods, self.gpus)
        self._cores = machine.cores(job.pods)

    async def __aenter__(self) -> "Processes":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass  # each shim cleans up after itself

    async def start(self, pod: Pod, new: bool) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(_SHIM), stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._orders(pod)).encode() + b"\n")
        return process

    def stop(self, pod: Pod, process: Process) -> None:
        """SIGTERM, then after the pod's grace period SIGKILL."""
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)  # asyncio's own would take the exit code of one that has just ended

    def kill(self, pod: Pod, process: Process) -> None:
        assert process.stdin is not None
        process.stdin.close()

    def freeze(self, pod: Pod, process: Process) -> None:
        frozen: set[psutil.Process] = set()
        while running := set(_family(process)) - frozen:  # one that was not frozen yet may have started others
            for each in running:
                with suppress(psutil.NoSuchProcess):
                    each.suspend()
            frozen |= running

    def thaw(self, pod: Pod, process: Process) -> None:
        for each in _family(process):
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def _orders(self, pod: Pod) -> dict[str, object]:
        given = environment.pod_environment(self._job, pod, self.network)
        variables = environment.host_environment(pod) | given
        if self.gpus:
            variables = {"CUDA_VISIBLE_DEVICES": ",".join(self._visible_gpus[pod.name])} | variables
        if PATH in given:  # the observer's folder is in this checkout
            variables[PATH] = given[PATH].replace(observer.FOLDER, str(observer.SOURCE))
        command, args = environment.command(pod, given)
        directory = pod.container.get("workingDir")
        return {
            "command": [*(command or self._entrypoint), *args],
            "environment": variables,
            "directory": directory if directory and Path(directory).is_dir() else None,
            "cores": self._cores.get(pod.name),
            "grace": pod.grace,
        }


def _family(shim: Process) -> list[psutil.Process]:
    """All processes of a pod."""
    try:
        return psutil.Process(shim.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
