"""Commands of torchtally in this process, which has imported what they need."""

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from torchtally.commands import verify


def called(main: Callable[[list[str]], int], *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """What a command's main function says, with `given` on standard input."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    with patch.object(sys, "stdin", stdin), redirect_stdout(out), redirect_stderr(err):
        status = main([*map(str, arguments)])
    said = [each.buffer.getvalue().decode() for each in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*map(str, arguments)], status, *said)


def verified(path: str | Path, *options: object, log: str = "") -> subprocess.CompletedProcess[str]:
    """What `torchtally verify` says of a file or a folder, or of this log if the path is `-`."""
    return called(verify.main, path, *options, given=log)
