"""A module of this package in a forked rank."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from torchtally.pod.failure import exit_rank
from torchtally_observer import process


def prepared(module: str, arguments: Sequence[str]) -> Callable[[], int]:
    """Import a module, for all ranks. Returns what calls its main() in a rank."""
    main: Callable[[], int] = importlib.import_module(module).main

    def run() -> NoReturn:
        process.current().leave()  # it keeps its own account, and the image's variable may have started an observation
        sys.argv = [module, *arguments]
        for stream in (sys.stdout, sys.stderr):
            # Whole lines, which do not mix with another rank's: unbuffered, print() writes the newline separately.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
        exit_rank(main())

    return run
