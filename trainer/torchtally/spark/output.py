"""The ranks' standard output, passed on by the driver: line by line as it arrives, complete at the end."""

import io
import json
from collections import Counter
from typing import TextIO

from torchtally import events
from torchtally.proof import line as tally_line

# torchrun's agent reports a failed rank after the rank's own message: a traceback of the agent, a rule of equals signs,
# the rank's error, and another rule.
_TRACEBACK, _AGENT_FRAME = "Traceback (most recent call last):", '  File "<frozen runpy>"'


class RankOutput(io.TextIOBase):
    """Passes complete lines on to `out` and counts them. It replaces the streams that TorchDistributor writes to.

    TorchDistributor gives no guarantee for the output of executors: lines can be lost or arrive in pieces.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._partial = ""  # line
        self._passed: Counter[str] = Counter()
        self._traceback_began = False
        self._rules_left = 0  # rules until the end of an agent's report

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if _is_complete(line) and not self._is_of_agent(line):
                self._passed[line] += 1
                self._pass_on(line)
        return len(text)

    def add_missing(self, text: str) -> None:
        """Pass on the lines of `text` that have not arrived."""
        for line in text.splitlines():
            if self._passed[line]:
                self._passed[line] -= 1
            else:
                self._pass_on(line)

    def _is_of_agent(self, line: str) -> bool:
        if self._rules_left:
            self._rules_left -= set(line) == {"="}
            return True
        if self._traceback_began:
            self._traceback_began = False
            if line.startswith(_AGENT_FRAME):
                self._rules_left = 2
                return True
            self._passed[_TRACEBACK] += 1
            self._pass_on(_TRACEBACK)
        self._traceback_began = line == _TRACEBACK
        return self._traceback_began

    def _pass_on(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def _is_complete(line: str) -> bool:
    prefix = next((each for each in (tally_line.PREFIX, events.PREFIX) if line.startswith(each)), None)
    if prefix is None:
        return True
    try:
        json.loads(line.removeprefix(prefix))
    except ValueError:
        return False
    return True
