"""Messages to people: a line each on standard error, marked as torchtally's."""

import sys


def log(message: str) -> None:
    """Write `torchtally: message` as one write, so that the lines of several processes do not mix."""
    sys.stderr.write(f"torchtally: {message}\n")
    sys.stderr.flush()
