"""The ways in which a run ends: exit codes, and exceptions whose text is one sentence for the user."""

import importlib.util
import operator
import re
from typing import Any

from torchtally import families

OK = 0
FAILED = 1  # any other cause: a bug, or a failure of the user's program
REFUSED = 2  # bad input, or pods that contradict each other
UNPROVEN = 3  # the samples were not consumed as the contract requires
FINAL = (REFUSED, UNPROVEN)  # no retry cures them
SIGNALLED = 128  # plus the signal's number; PyTorchJob's ExitCode policy retries codes from here on
RETRIED = SIGNALLED + 73  # a program failed, and the job has retries
VOLUME = SIGNALLED + 74  # 74 is EX_IOERR; a retry can succeed
LOST = SIGNALLED + 75  # 75 is EX_TEMPFAIL; a retry can succeed


class Ending(Exception):
    """The end of a run: one sentence with the id of its family, and an exit code."""

    code: int
    family: str | None = None
    recorded = False  # for the entry point, or as the termination message

    def __init__(self, *told: object) -> None:
        super().__init__(*told)
        self.family = families.named_in(super().__str__()) or self.family or families.of_caller()

    def __str__(self) -> str:
        return families.ended_by(super().__str__(), self.family)


class Refused(Ending):
    """Bad input: one sentence that names the field, its value and the allowed values."""

    code = REFUSED


def as_int(value: Any) -> Any:
    """A number of any integer type, such as NumPy's, as an `int`; what is none of them as it is."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return an argument of this name as an `int`. Raises Refused unless it is a whole number within these bounds."""
    number = as_int(value)
    if type(number) is not int or number < least or (most is not None and number > most):
        to = "" if most is None else f" to {most}"
        raise Refused(f"{name}={value!r} must be a whole number from {least}{to}")
    return number


def require(package: str, needs: str, extra: str) -> None:
    """Raise Refused if `package` of this extra is not installed. `needs` begins the sentence: "this task needs"."""
    if importlib.util.find_spec(package) is None:
        raise Refused(
            f"{needs} the Python package {package}: pip install {package}, or use an image with the extra `{extra}`"
        )


class Unproven(Ending):
    """The tallies contradict the contract: one sentence with the counts."""

    code = UNPROVEN
    family = "T12"


class Stopped(Ending):
    """All ranks have stopped after the same step, because this signal reached one of them."""

    def __init__(self, number: int, saved: bool, rank: int) -> None:
        super().__init__(number, saved, rank)
        self.number, self.saved, self.rank = number, saved, rank
        self.code = SIGNALLED + number

    def __str__(self) -> str:
        how = "a checkpoint" if self.saved else "without a new checkpoint"
        return f"stopped by signal {self.number}, which rank {self.rank} received, after a step and {how}"


class Exhausted(Ending):
    """The job has no retries left: one sentence with the number of starts and the last failure."""

    code = FAILED
    family = "T17"


class Volume(Ending):
    """The output volume cannot be read or written: one sentence that names the path."""

    code = VOLUME
    family = "T14"


class Lost(Ending):
    """Another rank or pod is gone or never arrived: one sentence that names it if it is known."""

    code = LOST
    family = "T16"


# RPC raises a RuntimeError if the callee is gone or silent.
_LOST_BY_RPC = r"this error originated at tensorpipe|RPC ran for more than set timeout"
# c10d has exceptions of its own for a lost peer; gloo raises a RuntimeError.
_LOST_A_PEER = re.compile(
    r"Dist(Backend|Network|Store)?Error: |RuntimeError: .*(Connection (closed|reset) by peer|Broken pipe|"
    r"Timed out waiting|[Cc]onnection refused|connectFullMesh failed|Application timeout caused pair closure|"
    rf"Socket closed|Connection timed out|No route to host|Network is unreachable|{_LOST_BY_RPC})",
    re.DOTALL,
)


def peer_lost(error: BaseException) -> Lost:
    """What a rank ends with by an error that tells of a lost peer: gloo's words without its source file and advice."""
    said = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition("\n")[0]).partition(". This is typically")[0]
    return Lost(f"another rank went away ({said})")


def lost_a_peer(error: str) -> bool:
    """Whether `error`, as `type: text`, is the consequence of a lost peer."""
    return _LOST_A_PEER.match(error) is not None
