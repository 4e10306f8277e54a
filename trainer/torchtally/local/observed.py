"""What was observed of the pods' programs, from their lines."""

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from torchtally.observed import judge, report


def tell(texts: Iterable[str]) -> dict[str, Any] | None:
    """Print for people, to stderr, what these lines say. Returns the same as an object."""
    lines = judge.Lines()
    for text in texts:
        lines.add(text)
    observation = judge.judge(lines)
    if observation is None:
        return None
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    with contextlib.suppress(OSError):  # the reader has left
        print(report.as_text(observation, encoding=sys.stderr.encoding, colour=colour), file=sys.stderr)
    return report.as_json(observation)
