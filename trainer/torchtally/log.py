"""Messages to people: a line each on standard error, marked as torchtally's.

Logger "torchtally" of the standard library: `log.info("…")`, `log.warning("…")`.
"""

import logging
import sys


class _StandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write text and newline at once, so that the lines of several processes do not mix."""
        try:
            sys.stderr.write(f"torchtally: {record.getMessage()}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk, a pipe that nobody reads, a stream that is closed
            pass


log = logging.getLogger("torchtally")
log.setLevel(logging.INFO)
log.propagate = False  # a program's own root logger would repeat each line
if not log.handlers:
    log.addHandler(_StandardError())
