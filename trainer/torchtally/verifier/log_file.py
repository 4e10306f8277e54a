"""A file with a log, as platforms hand it out: the kubelet compresses what it rotates, and PowerShell writes UTF-16."""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from torchtally.errors import Refused

_GZIP = b"\x1f\x8b"
_UTF_16 = re.compile(rb"\xff\xfe[^\x00]\x00|\xfe\xff\x00[^\x00]")  # its mark, and a letter: other bytes are no matter
_OTHERS = {b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


@contextmanager
def open_log(path: Path) -> Iterator[TextIO]:
    """Open it for reading. Raises Refused if it cannot be read, also later on, and for another compression."""
    try:
        with _opened(path) as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _opened(path: Path) -> TextIO:
    with path.open("rb") as file:
        begin = file.read(8)
    for mark, name in _OTHERS.items():
        if begin.startswith(mark):
            raise Refused(f"{path} is compressed ({name}), and a log must be text or gzip: decompress it")
    encoding = "utf-16" if _UTF_16.match(begin) else "utf-8"
    # newline="": progress bars end their lines by a carriage return
    if begin.startswith(_GZIP):
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")
    return path.open(encoding=encoding, errors="replace", newline="")
