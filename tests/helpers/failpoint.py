"""The command line of torchtally with a failpoint, as etcd's robustness tests have: rank 0 pauses where a test says.

The file that FAILPOINT names holds the kind of an event, such as Saved, or WRITING for the middle of a checkpoint's
file, or where a pod is to pause: `step POD EPOCH SHARE` is once it has reported this share of an epoch's steps. The
pause lasts for as long as the file holds it.

Beside it, `.clock-POD` holds the seconds that a pod's clock is off, and `.slow` those that a sync of a file takes.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from torchtally import atomic_file, cli, events, standard_output
from torchtally.checkpoints import checkpoint_file
from torchtally.environment import pod_name

WRITING = "writing"
reported, sync = events.emit, os.fsync


def point() -> str:
    try:
        return Path(os.environ["FAILPOINT"]).read_text()
    except FileNotFoundError:
        return ""


def pause_at(name: str) -> None:
    while point() == name:
        time.sleep(0.005)


def emit(event: events.Event, source: events.Source) -> None:
    reported(event, source)
    if getattr(event, "position", 1) > 0:  # within an epoch
        pause_at(type(event).__name__)
    if isinstance(event, events.Progress) and at_step(here := point(), event, source):
        standard_output.write(here)
        pause_at(here)


def at_step(here: str, event: events.Progress, source: events.Source) -> bool:
    """Whether this pod has reached the step where it is to pause."""
    kind, *where = here.split() or [""]
    if kind != "step" or where[0] != source.pod or event.phase != "train":
        return False
    return (event.epoch, event.step / event.steps) >= (int(where[1]), float(where[2]))


def replace(path: Path, contents: Any) -> Path:
    def write(file: IO[bytes]) -> None:
        half = len(contents) // 2
        file.write(contents[:half])
        file.flush()
        pause_at(WRITING)
        file.write(contents[half:])

    return atomic_file.replace(path, write)


def beside(name: str) -> float:
    try:
        return float(Path(f"{os.environ['FAILPOINT']}.{name}").read_text() or 0)
    except FileNotFoundError:
        return 0


def off(clock: Callable[[], int | float], unit: int) -> Callable[[], int | float]:
    return lambda: clock() + int(beside(f"clock-{pod_name()}") * unit)


def slow_sync(file: int) -> None:
    time.sleep(beside("slow"))
    sync(file)


def install() -> None:
    events.emit = emit
    time.time, time.time_ns = off(time.time, 1), off(time.time_ns, 10**9)  # type: ignore[assignment]
    os.fsync = slow_sync  # type: ignore[assignment]


if __name__ == "__main__":
    install()
    checkpoint_file.replace = replace  # type: ignore[attr-defined]
    sys.exit(cli.main(sys.argv[1:]))
