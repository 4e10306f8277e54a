"""The failure of a pod: one sentence, and whether it is a cause or the consequence of another pod's failure."""

import contextlib
import os
import re
import signal
import sys
import zlib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler

from torchtally import compat, families, standard_output
from torchtally.environment import has_entry_point, pod_name
from torchtally.errors import LOST, OK, REFUSED, SIGNALLED, UNPROVEN, Ending, Lost, Stopped, lost_a_peer
from torchtally.log import log
from torchtally.pod import termination_message

_TOLD = "told-"  # a file for each sentence that a rank has logged


class Kind(IntEnum):
    """How much is known of a failure. The lower, the likelier it is the cause of the others."""

    KNOWN = 0  # a signal, or an error that the rank recorded
    UNEXPLAINED = 1  # an exit code alone: a cause, or a program's answer to a lost peer
    CONSEQUENCE = 2  # a peer was lost


@dataclass(frozen=True)
class Failure:
    """An exit code, and a sentence that names the rank and the pod."""

    kind: Kind
    code: int
    text: str


def first(error: ChildFailedError, pod: str) -> Failure:
    """Return the first failure of this pod's ranks. Consequences of a lost peer count only if there is nothing else."""
    found = [(_ended_by_the_agent(each), each, of(rank, each, pod)) for rank, each in error.failures.items()]
    # Times are whole seconds. The agent lists first what it saw first.
    return min(found, key=lambda it: (it[0], it[2].kind == Kind.CONSEQUENCE, it[1].timestamp, it[2].kind))[2]


def of(rank: int, failure: ProcessFailure, pod: str) -> Failure:
    """Return how `rank` ended. torchrun itself exits with 1 whatever the rank's exit code."""
    who, recorded = f"rank {rank} ({pod})", failure.message
    if failure.exitcode < 0:
        number = -failure.exitcode
        said = f"; it had failed: {recorded.get('message')}" if isinstance(recorded, dict) else ""
        return Failure(Kind.KNOWN, SIGNALLED + number, f"{who} was ended by signal {number} ({_name(number)}){said}")
    code = failure.exitcode
    if not isinstance(recorded, dict):
        if code == LOST:
            return Failure(Kind.CONSEQUENCE, code, f"{who} lost another rank")
        return Failure(
            Kind.UNEXPLAINED,
            code,
            f"{who} failed with exit code {code}, its log says why (an error in Python is shown here if the main "
            "function is decorated with torch.distributed.elastic.multiprocessing.errors.record)",
        )
    message = str(recorded.get("message"))
    if code in (REFUSED, UNPROVEN, LOST) or code >= SIGNALLED:
        # One of our sentences: the name of its type means nothing to a user.
        sentence = message.partition(": ")[2]
        return Failure(Kind.CONSEQUENCE if code == LOST else Kind.KNOWN, code, _attributed(who, sentence))
    where = _last_frame(recorded)
    text = f"{who} failed with exit code {code}: {message}{where}"
    if lost_a_peer(message):
        return Failure(Kind.CONSEQUENCE, LOST, text)
    return Failure(Kind.KNOWN, code, text)


def record(error: BaseException) -> None:
    """Record `error` of a rank for the entry point, which derives termination message and exit code from it.

    Under plain torchrun, the rank itself writes the message, unless it is the consequence of a lost peer, or another
    rank of the pod has written one.
    """
    if isinstance(error, Ending):
        if error.recorded:  # where it was raised, which is not known any more
            return
        error.recorded = True
    with contextlib.suppress(OSError):  # of a full disk, which would hide what went wrong
        get_error_handler().record_exception(error)
    consequence = isinstance(error, Lost) or lost_a_peer(f"{type(error).__name__}: {error}")
    if not has_entry_point() and not consequence and _is_first():
        termination_message.write(sentence_of(error))


def sentence_of(error: BaseException) -> str:
    """What this rank tells others of its error, with its name in front."""
    rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK", 0)
    who = f"rank {rank} ({pod_name()})"
    if isinstance(error, Ending):
        return _attributed(who, str(error))
    return f"{who} failed: {type(error).__name__}: {error}"


def _is_first() -> bool:
    """Whether this rank is the first of the pod's that fails in this attempt, as far as torchrun lets it know."""
    if not (own := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        return True
    try:  # in the folder of the attempt, which has one for each rank
        os.close(os.open(Path(own).parents[1] / "failed", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:  # a full disk
        return True
    return True


def end(ending: Ending) -> int:
    """Record the sentence that a rank ends with, and log it unless the entry point will. Returns its exit code."""
    record(ending)
    if isinstance(ending, Stopped) or not _entry_point_has_it():
        _log(ending)
    return ending.code


def _log(ending: Ending) -> None:
    """Log it, unless another rank of the pod has logged the same. The entry point finds it in `told`."""
    sentence, recorded = str(ending), os.environ.get("TORCHELASTIC_ERROR_FILE")
    folder = os.environ.get("TORCHTALLY_STACKS") or (recorded and Path(recorded).parents[1])  # of torchrun's attempt
    said = sentence
    if folder:
        try:
            with (Path(folder) / f"{_TOLD}{zlib.crc32(sentence.encode())}").open("x") as file:
                file.write(sentence)
        except FileExistsError:
            return
        except OSError:  # a full disk
            pass
        if not isinstance(ending, Stopped) and os.environ.get("WORLD_SIZE", "1") != "1":
            said = sentence_of(ending)
    log.error(families.with_link(said))


def told(failure: Failure, folder: Path) -> bool:
    """Whether a rank has logged the whole text of this pod's failure: its end was hidden by a shell, and came after."""
    sentences = (each.read_text() for each in folder.glob(f"{_TOLD}*"))
    return any(re.fullmatch(rf"(rank \d+ \([^)]*\): )?{re.escape(each)}", failure.text) for each in sentences)


def _entry_point_has_it() -> bool:
    """Whether this process is a child of the entry point, which finds its error recorded. A shell can hide its end."""
    recorded = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return str(os.getppid()) == os.environ.get("TORCHTALLY_AGENT") and Path(recorded).is_file()


class _Hook:
    """A `sys.excepthook` that ends Python with the exit code of an Ending, and passes on other exceptions."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Ending):
            raise SystemExit(end(error))  # of which Python takes the code
        self._before(kind, error, trace)


_wanted = False


def exit_codes() -> None:
    """Let exceptions of torchtally that a program does not catch end it with one sentence and their exit codes.

    Call it once, before the account. Programs under `torchtally run` do not need it. Other exceptions end the program
    as before. A `sys.excepthook` that is set in the account's `with` statement takes the place of this one.
    """
    global _wanted
    _wanted = True
    keep_exit_codes()


def keep_exit_codes() -> None:
    """Put the hook in front, if the program or the entry point wants it: `init_process_group` sets one of its own."""
    if (_wanted or has_entry_point()) and not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


def exit_rank(code: int) -> NoReturn:
    """End a rank's program: after its threads and exit handlers if it has succeeded, and at once if it has failed."""
    if code == OK:
        compat.finish_python()
    standard_output.flush()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # of a stream that is closed or full
        sys.stderr.flush()
    os._exit(code)  # NCCL's communicators would wait for the other ranks


def _attributed(who: str, sentence: str) -> str:
    """The sentence with the rank in front, unless it begins with a rank: all ranks can report one sentence about it."""
    return sentence if re.match(r"rank \d+ \(", sentence) else f"{who}: {sentence}"


def _ended_by_the_agent(failure: ProcessFailure) -> bool:
    """Whether the agent sent it SIGTERM, as it does to a pod's other ranks after a failure."""
    return failure.exitcode in (-signal.SIGTERM, SIGNALLED + signal.SIGTERM)


def _last_frame(recorded: dict[str, Any]) -> str:
    lines = str(recorded.get("extraInfo", {}).get("py_callstack", "")).splitlines()
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
