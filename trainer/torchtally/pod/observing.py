"""The observation of a user's own program: its ranks write lines, and a pod in no job ends with what they say."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchtally.log import log


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Give all ranks a file for their lines, and print at the end what they say, if there are any.

    The program keeps its exit code, whatever they say. A fork of this process, as a rank is, prints nothing.
    """
    number, name = tempfile.mkstemp(prefix="torchtally-observed-")
    os.close(number)
    os.environ["TORCHTALLY_OBSERVED"] = name
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == own:
            _tell(Path(name))


def _tell(file: Path) -> None:
    try:
        text = file.read_text(errors="replace")
        file.unlink()
        if text:
            print(_said(text), file=sys.stderr, flush=True)
    except Exception as error:
        log.warning(f"the observation cannot be told: {type(error).__name__}: {error}")


def _said(text: str) -> str:
    from torchtally.observed import judge, report  # which no other pod waits for

    lines = judge.Lines()
    for line in text.splitlines():
        lines.add(line)
    observation = judge.judge(lines)
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return report.as_text(observation, encoding=sys.stderr.encoding, colour=colour) if observation else ""
