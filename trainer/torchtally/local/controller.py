"""The operator's part, and the kubelet's: restarts, limits, the job's outcome, cleaning up."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from torchtally.local.job import LocalJob, Pod
from torchtally.local.output import Output

_SHOWN_AT = 3  # restarts of a pod, with which its last line is shown: it may never start
_FAREWELL = 10  # seconds for a process that was killed


class Engine(Protocol):
    """What pods are made of. A pod's output is its process's stdout, its exit code the process's.

    Where `start` is for a `new` pod, nothing is left of an earlier one of its name.
    """

    async def __aenter__(self) -> "Engine": ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def start(self, pod: Pod, new: bool) -> Process: ...
    def stop(self, pod: Pod, process: Process) -> None: ...
    def kill(self, pod: Pod, process: Process) -> None: ...
    def freeze(self, pod: Pod, process: Process) -> None: ...
    def thaw(self, pod: Pod, process: Process) -> None: ...


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    INTERRUPTED = "Interrupted"


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    message: str


@dataclass
class Status:
    """What has become of a pod; the next one of its name has a status of its own."""

    phase: Phase = Phase.PENDING
    restarts: int = 0
    exit_code: int | None = None
    process: Process | None = None
    deleted: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing of it starts from here on


class Controller:
    """Runs one job to its verdict. What may befall it meanwhile, in a cluster, can be done to it by its methods."""

    def __init__(self, job: LocalJob, engine: Engine, output: Output) -> None:
        self._job = job
        self._engine = engine
        self._output = output
        self._pods = {pod.name: pod for pod in job.pods}
        self._decided = asyncio.Event()
        self._interrupts = 0
        self._stopping = False
        self._resumed = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.interrupted_by: signal.Signals | None = None
        self._verdict: Verdict | None = None
        self.status = {name: Status() for name in self._pods}

    async def run(self) -> Verdict:
        self._begin()
        async with asyncio.TaskGroup() as group:
            for name, pod in self._pods.items():
                self._lives[name] = group.create_task(self._live(pod))
            await self._decided.wait()
            await self._clean_up()
        assert self._verdict is not None
        return self._verdict

    def delete(self, name: str) -> None:
        """As `kubectl delete pod` does; whatever the restart policy, the operator makes another one of its name."""
        status = self.status[name]
        if not status.deleted:
            self._output.say(f"{name} is deleted")
            status.deleted = True
            status.over.set()
            self._act(self._engine.stop, name)

    def kill(self, name: str) -> None:
        """SIGKILL to all processes of a pod, as where the node's memory is exhausted."""
        self._act(self._engine.kill, name)

    def freeze(self, name: str) -> None:
        """SIGSTOP to all processes of a pod."""
        self._act(self._engine.freeze, name)

    def thaw(self, name: str) -> None:
        """SIGCONT to all processes of a pod."""
        self._act(self._engine.thaw, name)

    def suspend(self) -> None:
        """As runPolicy.suspend: true does: all pods are deleted, and none is made."""
        self._resumed.clear()
        if self._deadline:
            self._deadline.cancel()
        self._output.say(f"{self._job.title} is suspended.")
        for name in self._pods:
            self.delete(name)

    def resume(self) -> None:
        """As runPolicy.suspend: false does: all pods are replaced, and the job's time counts from here."""
        self._output.say(f"{self._job.title} is resumed.")
        self._begin()

    def _begin(self) -> None:
        name, deadline = self._job.name, self._job.deadline
        if deadline is not None:
            message = f"Job {name} has failed because it was active longer than specified deadline"
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(deadline, self._decide, Outcome.FAILED, message)
        self._resumed.set()

    def interrupt(self, number: signal.Signals) -> None:
        """Stop all pods as if they were deleted; the second time, at once."""
        self._interrupts += 1
        self._stopping = True
        if self._interrupts == 1:
            self.interrupted_by = number
            self._output.say(f"{number.name}: stopping all pods (once more: at once)")
            self._decide(Outcome.INTERRUPTED, f"{self._job.title} was interrupted by {number.name}.")
        for name in self._pods:
            if self.status[name].process is None:
                self._lives[name].cancel()  # an image that is being pulled, say
            self._remove(self._engine.stop if self._interrupts == 1 else self._engine.kill, name)

    async def _live(self, pod: Pod) -> None:
        """All pods of one name, one after the other."""
        while not self._decided.is_set():
            status = self.status[pod.name] = Status()
            await self._run(pod, status)
            await status.over.wait()
            await self._resumed.wait()

    async def _run(self, pod: Pod, status: Status) -> None:
        """A pod's life: as many runs of its container as its restart policy gives it."""
        while not status.over.is_set():
            new = not status.restarts or pod.replica.restart_policy == "ExitCode"
            status.process = process = await self._engine.start(pod, new)
            status.phase = Phase.RUNNING
            if self._stopping or status.deleted:  # while it was being made
                self._remove(self._engine.stop, pod.name)
            try:
                assert process.stdout is not None
                await self._output.pump(pod.name, process.stdout)
                code = await process.wait()
            finally:
                if process.returncode is None:
                    self._engine.kill(pod, process)
                    with suppress(TimeoutError):  # asyncio complains of processes that outlive its loop
                        await asyncio.wait_for(process.wait(), _FAREWELL)
            status.exit_code = code if code >= 0 else 128 - code
            if not self._restarts(pod, status):
                return
            # The kubelet's back-off, ten times shorter: at once, then 1 s, 2 s, 4 s, ...
            delay = 0 if status.restarts == 1 else min(2 ** (status.restarts - 2), 30)
            with suppress(TimeoutError):
                await asyncio.wait_for(status.over.wait(), delay)

    def _restarts(self, pod: Pod, status: Status) -> bool:
        """Take note of how a container ended; whether it runs once more."""
        code, policy = status.exit_code or 0, pod.replica.restart_policy
        ended = Phase.FAILED if code else Phase.SUCCEEDED
        if status.deleted or self._decided.is_set():
            status.phase = Phase.DELETED if status.deleted else ended
            return False
        again = policy == "Always" or (code != 0 and policy == "OnFailure") or (code >= 128 and policy == "ExitCode")
        if not again:
            status.phase = ended
            if code:
                self._output.say(f"{pod.name} failed with exit code {code} (restartPolicy {policy})")
            self._judge(pod)
            return False
        status.restarts += 1
        if self._past_backoff_limit(pod):
            status.phase = Phase.FAILED
            self._fail_on_backoff_limit()
            return False
        self._output.say(f"{pod.name} ended with exit code {code}: restart {status.restarts} (restartPolicy {policy})")
        if status.restarts == _SHOWN_AT:
            last = self._output.last.get(pod.name)
            said = f"its last line was: {last}" if last else "it has printed nothing"
            self._output.say(f"{pod.name} has ended {_SHOWN_AT} times, and restarts as it would in a cluster; {said}")
        return True

    def _past_backoff_limit(self, pod: Pod) -> bool:
        limit = self._job.backoff_limit
        if limit is None:
            return False
        if self._job.kind == "TrainJob":
            return sum(status.restarts for status in self.status.values()) > limit
        if pod.replica.restart_policy == "ExitCode":
            return limit == 0  # such a pod is replaced: its restarts are counted by nobody
        restarts = sum(
            self.status[other.name].restarts
            for other in self._pods.values()
            if self.status[other.name].phase is Phase.RUNNING and other.replica.restart_policy != "ExitCode"
        )
        return restarts >= max(limit, 1)

    def _judge(self, pod: Pod) -> None:
        """What the end of this pod means for the job."""
        job, kind = self._job, pod.replica.kind
        # Looked at where it decides: for each pod's end to look at all pods takes long in a large job.
        alike = (self.status[other.name].phase for other in self._pods.values() if other.replica.kind == kind)
        if self.status[pod.name].phase is Phase.FAILED:
            if job.backoff_limit == 0:
                self._fail_on_backoff_limit()
            elif pod.replica.restart_policy == "ExitCode":
                self._decide(Outcome.FAILED, f'job "{job.name}" is failing because "{kind}" replica(s) failed.')
            else:
                count = sum(phase is Phase.FAILED for phase in alike)
                self._decide(Outcome.FAILED, f"{job.title} is failed because {count} {kind} replica(s) failed.")
        elif kind == "Master":
            self._decide(Outcome.SUCCEEDED, f"{job.title} is successfully completed.")
        elif "Master" not in job.replicas and (job.elastic or all(phase is Phase.SUCCEEDED for phase in alike)):
            self._decide(Outcome.SUCCEEDED, f"{job.kind} {job.namespace}/{job.name} successfully completed.")

    def _fail_on_backoff_limit(self) -> None:
        message = f"Job {self._job.name} has failed because it has reached the specified backoff limit"
        self._decide(Outcome.FAILED, message)

    def _decide(self, outcome: Outcome, message: str) -> None:
        if self._verdict is None:
            self._verdict = Verdict(outcome, message)
            self._decided.set()
            self._resumed.set()
            for status in self.status.values():
                status.over.set()
            self._output.say(message)

    async def _clean_up(self) -> None:
        """Do with the pods that still run what cleanPodPolicy says, as far as nothing may be left behind."""
        assert self._verdict is not None
        if self._job.clean_pod_policy == "None" and not self._interrupts:
            _, left = await asyncio.wait(self._lives.values(), timeout=1)  # most jobs' pods end together
            if left and not self._interrupts:
                await self._leave(left, self._verdict.outcome is Outcome.SUCCEEDED)
        if not self._interrupts:
            self._stopping = True
            for name in self._pods:
                self._remove(self._engine.stop, name)

    async def _leave(self, left: set[asyncio.Task[None]], succeeded: bool) -> None:
        grace = max(pod.grace for pod in self._pods.values())
        wait = "waiting until they end" if succeeded else f"they are stopped here after {grace} s"
        self._output.say(f"cleanPodPolicy None leaves {len(left)} pod{'s' * (len(left) > 1)} running: {wait}")
        await asyncio.wait(left, timeout=None if succeeded else grace)

    def _remove(self, act: Callable[[Pod, Process], None], name: str) -> None:
        """Act on a pod that no other one follows."""
        self.status[name].deleted |= self._act(act, name)

    def _act(self, act: Callable[[Pod, Process], None], name: str) -> bool:
        """Act on a pod if it runs; whether it does."""
        process = self.status[name].process
        if process is None or process.returncode is not None:
            return False
        act(self._pods[name], process)
        return True
