"""What the ranks say, on the driver's standard output: as it comes, and in the end whole."""

import io
import json
from collections import Counter
from typing import TextIO

_TALLY = "TORCHTALLY "  # tally.PREFIX, for which the driver would import torch
# torchrun's agent reports on a rank that failed, after the rank has said what is wrong: a traceback of its own, then
# a rule of equals signs, what the rank had, and such a rule again.
_TRACEBACK, _OF_THE_AGENT = "Traceback (most recent call last):", '  File "<frozen runpy>"'


class Heard(io.TextIOBase):
    """Passes on whole lines to `out`, and knows which. It stands in for the streams that TorchDistributor writes to.

    From executors it gets them without a promise: a line may be lost, or come in pieces.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rest = ""
        self._lines: Counter[str] = Counter()
        self._began = False  # a traceback, with the line before
        self._rules = 0  # that are still to come of an agent's report

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if _is_whole(line) and not self._is_the_agents(line):
                self._lines[line] += 1
                self._pass_on(line)
        return len(text)

    def complete(self, said: str) -> None:
        """Pass on those lines of `said` that have not come."""
        for line in said.splitlines():
            if self._lines[line]:
                self._lines[line] -= 1
            else:
                self._pass_on(line)

    def _is_the_agents(self, line: str) -> bool:
        if self._rules:
            self._rules -= set(line) == {"="}
            return True
        if self._began:
            self._began = False
            if line.startswith(_OF_THE_AGENT):
                self._rules = 2
                return True
            self._lines[_TRACEBACK] += 1
            self._pass_on(_TRACEBACK)
        self._began = line == _TRACEBACK
        return self._began

    def _pass_on(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def _is_whole(line: str) -> bool:
    if not line.startswith(_TALLY):
        return True
    try:
        json.loads(line.removeprefix(_TALLY))
    except ValueError:
        return False
    return True
