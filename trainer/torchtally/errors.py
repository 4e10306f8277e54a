"""How a run ends: the exit codes that Kubernetes sees, and what is said to a user in one sentence."""

import re

OK = 0
FAILED = 1  # anything that is nobody's input: a bug, a program's own failure
REFUSED = 2  # bad input, or pods that contradict each other
UNPROVEN = 3  # the shards were not consumed as the contract says
SIGNALLED = 128  # plus the signal's number; PyTorchJob's ExitCode policy retries from here on
# To be retried: the output's volume fails (74 is EX_IOERR), and
VOLUME = SIGNALLED + 74
# another pod went away or never came, whatever ended it (75 is EX_TEMPFAIL).
LOST = SIGNALLED + 75


class Ending(Exception):
    """What ends a run: one sentence, and the exit code that goes with it."""

    code: int


class Refused(Ending):
    """What a user asked for cannot be done: one sentence that names the field, its value and what is allowed."""

    code = REFUSED


class Unproven(Ending):
    """The tallies do not agree with the contract: one sentence with the counts."""

    code = UNPROVEN


class Stopped(Ending):
    """All ranks have stopped after the same step, because one of them was asked to by this signal."""

    def __init__(self, number: int, saved: bool) -> None:
        super().__init__(number, saved)
        self.number, self.saved = number, saved
        self.code = SIGNALLED + number

    def __str__(self) -> str:
        how = "a checkpoint" if self.saved else "without a checkpoint, which could not be written"
        return f"stopped by signal {self.number}, after a step and {how}"


class Volume(Ending):
    """The volume with the output can be read or written no longer: one sentence that names the place."""

    code = VOLUME


class Lost(Ending):
    """Another rank or pod went away, or never came: one sentence that names it where that is known."""

    code = LOST


# What RPC says in a RuntimeError when the callee is gone or silent.
_LOST_BY_RPC = r"this error originated at tensorpipe|RPC ran for more than set timeout"
# c10d's own exceptions, and what gloo, which has none either, says then.
_LOST_A_PEER = re.compile(
    r"Dist(Backend|Network|Store)?Error: |RuntimeError: .*(Connection (closed|reset) by peer|Broken pipe|"
    r"Timed out waiting|[Cc]onnection refused|connectFullMesh failed|Application timeout caused pair closure|"
    rf"Socket closed|Connection timed out|No route to host|Network is unreachable|{_LOST_BY_RPC})",
    re.DOTALL,
)


def lost_a_peer(error: str) -> bool:
    """Whether `error`, as `type: text`, comes of a peer that went away."""
    return _LOST_A_PEER.match(error) is not None


def lost_by_rpc(error: RuntimeError) -> bool:
    """Whether `error` comes of an RPC's callee that went away, or did not answer in time."""
    return re.search(_LOST_BY_RPC, str(error)) is not None
