"""How far an attempt has come: from it, a resume after a crash counts the samples that are discarded."""

import contextlib
import os
import re
import zlib
from pathlib import Path

_LINE = re.compile(rb" *(\d+) +(\d+) ([0-9a-f]{8})\n")


class Reached:
    """A file of one line, which is written again about once a second.

    The write goes to the page cache, which outlives the process and does not wait for a disk.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file: int | None = None

    def record(self, attempt: int, consumed: int) -> None:
        """Record the number of samples in the weights; a failed write is none."""
        numbers = b"%10d %20d" % (attempt, consumed)
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, b"%s %08x\n" % (numbers, zlib.crc32(numbers)), 0)

    def lost_since(self, attempt: int, consumed: int) -> int:
        """The number of samples known to have been consumed after the checkpoint of `attempt`."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return 0
        match = _LINE.fullmatch(data)
        if not match or zlib.crc32(data[:31]) != int(match[3], 16):
            return 0
        # An earlier resume has counted the samples that an earlier attempt lost.
        return max(0, int(match[2]) - consumed) if int(match[1]) >= attempt else 0
