"""What ended a pod, in one sentence, and whether it is the cause or comes of another pod's end."""

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler

from torchtally.errors import LOST, OK, REFUSED, SIGNALLED, UNPROVEN, Ending, lost_a_peer


class Kind(IntEnum):
    """How much is known of a failure: the lower, the likelier it is the cause of the others."""

    KNOWN = 0  # a signal, or an error that the rank wrote down
    UNEXPLAINED = 1  # an exit code alone: a cause, or what a lost peer made of a program
    CONSEQUENCE = 2  # a peer was lost


@dataclass(frozen=True)
class Failure:
    """A pod's end: its exit code, and a sentence that names the rank and the pod."""

    kind: Kind
    code: int
    text: str


def first(error: ChildFailedError, pod: str) -> Failure:
    """The failure of this pod's ranks that came first and is no consequence of another one, if there is such a one."""
    found = [(_ended_by_the_agent(each), each, of(rank, each, pod)) for rank, each in error.failures.items()]
    # Times are whole seconds; what the agent saw earlier stands earlier.
    return min(found, key=lambda it: (it[0], it[2].kind == Kind.CONSEQUENCE, it[1].timestamp, it[2].kind))[2]


def of(rank: int, failure: ProcessFailure, pod: str) -> Failure:
    """How `rank` ended. torchrun itself would make 1 of every exit code."""
    who, written = f"rank {rank} ({pod})", failure.message
    if failure.exitcode < 0:
        number = -failure.exitcode
        said = f"; it had failed: {written.get('message')}" if isinstance(written, dict) else ""
        return Failure(Kind.KNOWN, SIGNALLED + number, f"{who} was ended by signal {number} ({_name(number)}){said}")
    code = failure.exitcode
    if not isinstance(written, dict):
        if code == LOST:
            return Failure(Kind.CONSEQUENCE, code, f"{who} lost another rank")
        return Failure(
            Kind.UNEXPLAINED,
            code,
            f"{who} failed with exit code {code}, its log says why (an error in Python is shown here if the main "
            "function is decorated with torch.distributed.elastic.multiprocessing.errors.record)",
        )
    message = str(written.get("message"))
    if code in (REFUSED, UNPROVEN, LOST) or code >= SIGNALLED:
        # A sentence of ours: its type says nothing to a user.
        sentence = message.partition(": ")[2]
        return Failure(Kind.CONSEQUENCE if code == LOST else Kind.KNOWN, code, f"{who}: {sentence}")
    where = _last_frame(written)
    text = f"{who} failed with exit code {code}: {message}{where}"
    if lost_a_peer(message):
        return Failure(Kind.CONSEQUENCE, LOST, text)
    return Failure(Kind.KNOWN, code, text)


def record(error: BaseException) -> None:
    """Write `error`, of a rank, where the entry point finds it: it makes the pod's last word and exit code of it."""
    with contextlib.suppress(OSError):  # of a full disk, which would hide what went wrong
        get_error_handler().record_exception(error)


def end(ending: Ending) -> int:
    """Record and print the sentence that a rank ends with; returns its exit code."""
    record(ending)
    print(f"torchtally: {ending}", file=sys.stderr, flush=True)
    return ending.code


def leave(code: int) -> None:
    """End a rank's program: a failed one at once."""
    sys.stdout.flush()
    if code != OK:
        os._exit(code)  # what it shares with others, NCCL's communicators, would wait for them


def _ended_by_the_agent(failure: ProcessFailure) -> bool:
    """When one rank fails, the agent sends SIGTERM to the others of the pod."""
    return failure.exitcode in (-signal.SIGTERM, SIGNALLED + signal.SIGTERM)


def _last_frame(written: dict[str, Any]) -> str:
    lines = str(written.get("extraInfo", {}).get("py_callstack", "")).splitlines()
    frames = [at for at, line in enumerate(lines) if line.startswith('  File "')]
    if not frames:
        return ""
    place, *code = lines[frames[-1] : frames[-1] + 2]
    return f"\n{place}" + "".join(f"\n{line}" for line in code if line.startswith("    "))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal without a name"
