"""How a run ends: the exit codes that Kubernetes sees, and what is said to a user in one sentence."""

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
