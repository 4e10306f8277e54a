"""A job under way, to which a test does what befalls jobs in a cluster."""

import asyncio
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil
from localjobs import LIMIT, Object, Run, load

from torchtally import events
from torchtally.local import containers, output, processes
from torchtally.local.controller import Controller
from torchtally.local.job import LocalJob, Pod

Engine = processes.Processes | containers.Containers
Part = Callable[[psutil.Process], list[psutil.Process]]  # of a pod's shim
Event = TypeVar("Event", bound=events.Event)


def agent(shim: psutil.Process) -> list[psutil.Process]:
    """The shim starts it in a session of its own."""
    return [each for each in shim.children() if os.getsid(each.pid) == each.pid and not _is_rank(each)]


def rank(shim: psutil.Process) -> list[psutil.Process]:
    return [each for each in shim.children(recursive=True) if _is_rank(each)]


def _is_rank(process: psutil.Process) -> bool:
    return process.name().startswith("rank ")


@dataclass(frozen=True)
class Heard:
    """A pod's line, its name in front, or (`said`) the runner's own."""

    when: float  # time.monotonic()
    text: str
    said: bool


class Over(AssertionError):
    """The job has ended before what was waited for."""


class Live(output.Output):
    """Runs a job in a thread of its own. Left early, it ends at once; nothing of it stays behind."""

    def __init__(
        self, job: LocalJob, engine: Callable[[LocalJob], Engine] = lambda job: processes.Processes(job, "torchtally")
    ):
        self.heard: list[Heard] = []
        self.starts: dict[str, int] = {pod.name: 0 for pod in job.pods}  # of containers, those of new pods included
        self.started: list[float] = []  # when each of them was, time.monotonic()
        self._shims: dict[str, int] = {}  # the latest of each pod
        self._more = threading.Condition()
        self._read = 0
        self._made: Future[tuple[asyncio.AbstractEventLoop, Controller]] = Future()
        self._ended: Future[Run] = Future()
        self._thread = threading.Thread(target=self._run, args=[job, engine], daemon=True)
        self._shown = io.BytesIO()
        super().__init__([pod.name for pod in job.pods], self._shown, colour=False)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._controller = self._made.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(2):  # the second time, at once
            if not self._ended.done():
                with suppress(RuntimeError):  # it has just been closed
                    self._loop.call_soon_threadsafe(self._controller.interrupt, signal.SIGTERM)
        self._thread.join()

    @property
    def lines(self) -> list[str]:
        return [each.text for each in self.heard if not each.said]

    @property
    def over(self) -> bool:
        return self._ended.done()

    def do(self, act: Callable[[Controller], None]) -> None:
        """Do something to the job; it is done on return."""

        async def acted() -> None:
            act(self._controller)

        acting = acted()
        try:
            asyncio.run_coroutine_threadsafe(acting, self._loop).result(LIMIT)
        except (RuntimeError, CancelledError) as error:  # the loop is closed, or about to be
            acting.close()
            raise Over("ended before something was done to it") from error

    def process(self, pod: str, part: Part) -> psutil.Process:
        """Waits for it: a pod may be between two lives."""
        ends = time.monotonic() + LIMIT
        while True:
            with suppress(psutil.Error, ProcessLookupError):  # of one that has ended meanwhile
                if found := pod in self._shims and part(psutil.Process(self._shims[pod])):
                    return found[0]
            if self.over:
                raise Over(f"ended without {part.__name__} in {pod}")
            assert time.monotonic() < ends, f"no {part.__name__} in {pod}"
            time.sleep(0.01)

    def until(self, *texts: str) -> float:
        """Read on until each of these texts was in a line; when the last of them came."""
        missing = set(texts)

        def found(line: str) -> bool:
            missing.difference_update([text for text in missing if text in line])
            return not missing

        return self._until(found, " and ".join(texts))

    def until_reported(self, pod: str, kind: type[Event], **values: object) -> Event:
        """Read on until the pod reports an event of this kind with these values."""
        reported: list[Event] = []

        def found(line: str) -> bool:
            record = events.read(line)
            if record and record.source.pod == pod and isinstance(record.event, kind):
                reported.append(record.event)
                return all(getattr(record.event, name) == value for name, value in values.items())
            return False

        self._until(found, f"{kind.__name__} of {pod}")
        return reported[-1]

    def _until(self, found: Callable[[str], bool], what: str) -> float:
        ends = time.monotonic() + LIMIT
        with self._more:
            while True:
                while self._read < len(self.heard):
                    last = self.heard[self._read]
                    self._read += 1
                    if found(last.text):
                        return last.when
                if self._ended.done():
                    raise Over(f"ended without {what}: {self._all()}")
                assert self._more.wait(ends - time.monotonic()), f"{LIMIT} s without {what}: {self._all()}"

    def skip(self) -> None:
        """Read on behind all that was heard so far."""
        with self._more:
            self._read = len(self.heard)

    def end(self) -> Run:
        return self._ended.result(LIMIT)

    def say(self, text: str) -> None:
        self._add([text], said=True)

    def _write(self, name: str, lines: Sequence[bytearray]) -> None:
        super()._write(name, lines)
        self._add([f"[{name}] {bytes(line).decode(errors='replace')}" for line in lines], said=False)

    def _add(self, texts: Sequence[str], said: bool) -> None:
        with self._more:
            self.heard += [Heard(time.monotonic(), text, said) for text in texts]
            self._more.notify_all()

    def _run(self, job: LocalJob, engine: Callable[[LocalJob], Engine]) -> None:
        try:
            self._ended.set_result(asyncio.run(self._to_the_end(job, engine(job))))
        except BaseException as error:
            self._ended.set_exception(error)
            if not self._made.done():
                self._made.set_exception(error)
        finally:
            with self._more:
                self._more.notify_all()

    async def _to_the_end(self, job: LocalJob, engine: Engine) -> Run:
        start = engine.start

        async def counted(pod: Pod, new: bool) -> asyncio.subprocess.Process:
            self.starts[pod.name] += 1
            self.started.append(time.monotonic())
            process = await start(pod, new)
            self._shims[pod.name] = process.pid
            return process

        engine.start = counted  # type: ignore[method-assign]
        async with engine:
            controller = Controller(job, engine, self)
            self._made.set_result((asyncio.get_running_loop(), controller))
            verdict = await controller.run()
        shown = self._shown.getvalue().decode().splitlines()
        return Run(verdict, controller.status, shown, [each.text for each in self.heard if each.said])

    def _all(self) -> str:
        return "\n".join(each.text for each in self.heard)


def run(folder: Path, document: Object) -> Run:
    """Run a job to its end."""
    with Live(load(folder, document)) as live:
        return live.end()
