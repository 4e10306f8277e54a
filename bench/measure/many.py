"""Growth of time with N: rendering the chart with N workers, simulating that job, and simulating N jobs.

The local runner's own code simulates the jobs, without processes: it validates manifests, determines each pod's
environment and command, and its controller takes pods and jobs to their ends.
"""

import asyncio
import io
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import cast

sys.path.insert(0, "scripts")

from bench.sample import emit
from local import controller, environment, manifest, output, processes, unsupported
from local.job import LocalJob, Pod

SIZES = (10, 100, 1000)
_CHART = "charts/torchtally"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = _rendered("--values", f"{_CHART}/ci/kind-values.yaml")
        simulate(_files(folder, small, 1))  # imports, which are not measured
        for n in SIZES:
            began = time.perf_counter()
            large = _rendered("--set", f"workers={n}")
            emit("many", time.perf_counter() - began, "s", "lower", what="workers rendered by helm", n=n)
            for what, text, files in (("workers of one job simulated", large, 1), ("jobs simulated", small, n)):
                paths = _files(folder, text, files)
                emit("many", _seconds(simulate, paths), "s", "lower", what=what, n=n)


def _rendered(*values: str) -> str:
    command = ["helm", "template", "demo", _CHART, "--skip-tests", *values]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _files(folder: Path, text: str, count: int) -> list[Path]:
    paths = [folder / f"{number}.yaml" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(text.replace("demo", f"demo-{number}"))
    return paths


def _seconds(function: Callable[[list[Path]], object], paths: list[Path]) -> float:
    began = time.perf_counter()
    function(paths)
    return time.perf_counter() - began


def simulate(paths: Iterable[Path]) -> list[str]:
    """Run the PyTorchJobs of these files at the same time; returns the output of the pods: their ranks."""

    async def together() -> list[list[str]]:
        return await asyncio.gather(*(_run(manifest.load(str(path)).job) for path in paths))

    return [line for lines in asyncio.run(together()) for line in lines]


async def _run(job: LocalJob) -> list[str]:
    unsupported.found_in(job, processes.SUPPORTED, [])
    out = _Quiet([pod.name for pod in job.pods], io.BytesIO(), colour=False)
    verdict = await controller.Controller(job, _Nothing(job), out).run()
    if verdict.outcome is not controller.Outcome.SUCCEEDED:
        sys.exit(verdict.message)
    return out.lines


class _Quiet(output.Output):
    def say(self, text: str) -> None:
        pass

    @property
    def lines(self) -> list[str]:
        stream = cast(io.BytesIO, self._stream)
        return stream.getvalue().decode().splitlines()


class _Nothing:
    """An engine that prepares pods without starting processes."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._network = environment.loopback(job, iter([23456]))

    async def __aenter__(self) -> "_Nothing":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def start(self, pod: Pod, new: bool) -> Process:
        given = environment.pod_environment(self._job, pod, self._network)
        environment.command(pod, given)
        await asyncio.sleep(0)  # until all have been started
        return cast(Process, _Ended(given["RANK"], last=pod.replica.kind == "Master"))

    def stop(self, pod: Pod, process: Process) -> None:
        pass

    kill = freeze = thaw = stop


class _Ended:
    """A process that has printed a line and exited with 0; the Master's is the last."""

    returncode = 0

    def __init__(self, line: str, last: bool) -> None:
        self._last = last
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(f"{line}\n".encode())
        self.stdout.feed_eof()

    async def wait(self) -> int:
        if self._last:
            await asyncio.sleep(0)
        return 0


if __name__ == "__main__":
    main()
