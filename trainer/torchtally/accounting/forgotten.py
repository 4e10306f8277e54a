"""Ends a program that would exit with 0 before the end of its run: nothing else reports that the run is not proved."""

import atexit
import os
import sys
from typing import Any, NoReturn

from torchtally import standard_output
from torchtally.errors import Unproven
from torchtally.pod import failure

_exit = sys.exit


class Watch:
    """Ends the program with `sentence` and UNPROVEN if it ends with 0 before `over()`."""

    _code: Any = None  # what the program has passed to sys.exit, which Python does not expose

    def __init__(self, sentence: str) -> None:
        self._sentence, self._process = sentence, os.getpid()
        if not _in_a_test():
            atexit.register(self._check)

    def over(self) -> None:
        """Stop watching: the run has ended, with or without an error."""
        atexit.unregister(self._check)

    def _check(self) -> None:
        failed = Watch._code not in (None, 0) or getattr(sys, "last_value", None) is not None
        interactive = hasattr(sys, "ps1")
        if not failed and not interactive and os.getpid() == self._process:
            standard_output.flush()
            os._exit(failure.end(Unproven(self._sentence)))


def _in_a_test() -> bool:
    """Whether this process is a pytest: its exit code says whether the tests have passed, and is not a training's."""
    return "_pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ


def _noted(code: Any = None, /) -> NoReturn:
    Watch._code = code
    _exit(code)


sys.exit = _noted  # now, for in `sys.exit(main())` it is looked up before main() makes a sampler
