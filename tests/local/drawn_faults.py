"""Jobs and what befalls them, as a seed draws them. Faults are tied to steps, so that a seed can be played again."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
from livejobs import Part, agent, rank

from torchtally.local.controller import Controller

SCRIPT = Path(__file__).parents[1] / "helpers/scripts/drawn_loop.py"
JOBS = 4  # seeds that share one job, whose undisturbed run is made once


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: a built-in task, or a loop of a user's own."""

    own: bool
    ranks: int
    policy: str
    retries: bool  # whether pods count their retries, and start again in place
    contract: str
    epochs: int
    shared: bool  # whether all ranks share the folder of checkpoints; otherwise, rank 0 alone has one
    every: float  # seconds between two checkpoints
    n: int  # of the own loop, as the rest
    batch_size: int
    accumulate: int
    workers: int
    seed: int

    @property
    def pods(self) -> list[str]:
        return ["demo-master-0", *(f"demo-worker-{number}" for number in range(self.ranks - 1))]

    @property
    def key(self) -> str:
        """What decides on the weights."""
        values = asdict(self)
        for name in ("policy", "retries", "shared", "every"):
            del values[name]
        return repr(values)


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault, and when: once a pod has done a share of an epoch's steps, or at once after the fault before it."""

    fault: str
    pod: str
    paused: str | None  # the pod that waits for it, at this step; None: at once
    epoch: int
    share: float

    @property
    def point(self) -> str:
        return f"step {self.paused} {self.epoch} {self.share}"


def job(seed: int) -> Job:
    draw = Random(f"job {seed // JOBS}")
    return Job(
        own=draw.random() < 0.6,
        ranks=draw.choice([1, 2, 2, 3]),
        policy=draw.choice(["OnFailure", "ExitCode"]),
        retries=draw.random() < 0.4,
        contract=draw.choice(["exact", "exact", "padded", "drop_last"]),
        epochs=draw.choice([1, 2, 3]),
        shared=draw.random() < 0.5,
        every=draw.choice([0.01, 0.01, 0.2]),
        n=draw.randrange(50, 400),
        batch_size=draw.choice([1, 4, 7]),
        accumulate=draw.choice([1, 1, 2, 3]),
        workers=draw.choice([0, 0, 2]),
        seed=draw.randrange(1000),
    )


def schedule(seed: int) -> list[Strike]:
    draw, of = Random(f"faults {seed}"), job(seed)
    points = sorted((draw.randint(1, of.epochs), round(draw.random(), 3)) for _ in range(draw.choice([1, 1, 2, 3, 4])))
    return [
        Strike(
            fault=draw.choice([*FAULTS]),
            pod=draw.choice(of.pods),
            paused=None if number and draw.random() < 0.3 else draw.choice(of.pods),
            epoch=epoch,
            share=share,
        )
        for number, (epoch, share) in enumerate(points)
    ]


# What can befall a job: each is given the training, and the pod.


def _signal(part: Part, number: signal.Signals, training: Any, pod: str) -> None:
    with suppress(psutil.NoSuchProcess):  # the fault before has just ended it
        training.process(pod, part).send_signal(number)


def _kill_the_rank(training: Any, pod: str) -> None:
    _signal(rank, signal.SIGKILL, training, pod)


def _kill_the_agent(training: Any, pod: str) -> None:
    _signal(agent, signal.SIGKILL, training, pod)


def _ask_the_rank(training: Any, pod: str) -> None:
    _signal(rank, signal.SIGTERM, training, pod)


def _ask_the_agent(training: Any, pod: str) -> None:
    _signal(agent, signal.SIGTERM, training, pod)


def _kill_the_pod(training: Any, pod: str) -> None:
    training.do(lambda controller: controller.kill(pod))


def _delete_the_pod(training: Any, pod: str) -> None:
    training.do(lambda controller: controller.delete(pod))


def _freeze_the_pod(training: Any, pod: str) -> None:
    training.do(lambda controller: controller.freeze(pod))
    training.go_on()
    time.sleep(1)  # what a freeze is made of
    training.do(lambda controller: controller.thaw(pod))


def _suspend_the_job(training: Any, pod: str) -> None:
    training.do(Controller.suspend)
    training.go_on()
    training.do(Controller.resume)


def _lose_the_newest_checkpoint(training: Any, pod: str) -> None:
    """And the job stops at once: its next one would be as new."""
    if len(kept := checkpoints(training.output)) > 1:
        newest = kept[-1]
        for file in [newest] if newest.is_file() else sorted(newest.iterdir()):
            file.unlink()
    _kill_the_rank(training, pod)


def _damage_the_newest_checkpoint(training: Any, pod: str) -> None:
    if len(kept := checkpoints(training.output)) > 1:
        newest = kept[-1]
        file = newest if newest.is_file() else max(newest.iterdir(), key=lambda each: each.stat().st_size)
        contents = bytearray(file.read_bytes())
        contents[len(contents) // 2] ^= 255
        file.write_bytes(contents)
    _kill_the_rank(training, pod)


def _fill_the_folder(training: Any, pod: str) -> None:
    """By a limit on the size of files, and then the pod is gone, and there is room for the others again."""
    ranks = [training.process(each, rank) for each in training.pods]
    for each in ranks:
        each.rlimit(psutil.RLIMIT_FSIZE, (1 << 12, psutil.RLIM_INFINITY))
    training.go_on()
    time.sleep(0.5)
    _kill_the_pod(training, pod)
    for each in ranks:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            each.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY,) * 2)


def _slow_the_folder(training: Any, pod: str) -> None:
    """A checkpoint is under way when the pod is gone."""
    training.beside("slow", "1")
    training.go_on()
    time.sleep(0.5)
    _kill_the_pod(training, pod)
    training.beside("slow", "0")


def _set_the_clock_back(training: Any, pod: str) -> None:
    """By an hour, and the next attempt begins before the one before it."""
    training.beside(f"clock-{pod}", "-3600")
    _kill_the_rank(training, pod)


FAULTS: Mapping[str, Callable[[Any, str], None]] = {
    "kill -9 the trainer": _kill_the_rank,
    "kill -9 the agent": _kill_the_agent,
    "kill -9 the pod": _kill_the_pod,
    "SIGTERM to the trainer": _ask_the_rank,
    "SIGTERM to the agent": _ask_the_agent,
    "delete the pod": _delete_the_pod,
    "freeze the pod": _freeze_the_pod,
    "suspend and resume the job": _suspend_the_job,
    "lose the newest checkpoint": _lose_the_newest_checkpoint,
    "damage the newest checkpoint": _damage_the_newest_checkpoint,
    "no room for checkpoints": _fill_the_folder,
    "a slow volume": _slow_the_folder,
    "the clock set back": _set_the_clock_back,
}


def checkpoints(output: Path) -> list[Path]:
    """The whole ones of a run, the oldest first: a folder has its manifest last."""
    found = [each for each in (output / "checkpoints").glob("*epoch-*") if not each.name.startswith(".")]
    return sorted(each for each in found if each.is_file() or (each / "manifest.json").exists())
