"""How a run ends: the exit codes that Kubernetes sees, and what is said to a user in one sentence."""

import re

OK = 0
FAILED = 1  # anything that is nobody's input: a bug, a program's own failure
REFUSED = 2  # bad input, or pods that contradict each other
UNPROVEN = 3  # the shards were not consumed as the contract says
SIGNALLED = 128  # plus the signal's number; PyTorchJob's ExitCode policy retries from here on
LOST = (
    SIGNALLED + 75
)  # another pod went away or never came (75 is EX_TEMPFAIL): to be retried, whatever ended the other


class Refused(Exception):
    """What a user asked for cannot be done: one sentence that names the field, its value and what is allowed."""


class Unproven(Exception):
    """The tallies do not agree with the contract: one sentence with the counts."""


class Stopped(Exception):
    """All ranks have stopped after the same step, because one of them was asked to by this signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}, after a step and a checkpoint")
        self.number = number


class Lost(Exception):
    """Another rank or pod went away, or never came: one sentence that names it where that is known."""


# c10d's own exceptions, and what gloo, which has none, says in a RuntimeError when a peer is gone or silent.
_LOST_A_PEER = re.compile(
    r"Dist(Backend|Network|Store)?Error: |RuntimeError: .*(Connection (closed|reset) by peer|Broken pipe|"
    r"Timed out waiting|[Cc]onnection refused|connectFullMesh failed)",
    re.DOTALL,
)


def lost_a_peer(error: str) -> bool:
    """Whether `error`, as `type: text`, comes of a peer that went away."""
    return _LOST_A_PEER.match(error) is not None
