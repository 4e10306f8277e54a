"""Logs in a file or a folder, in place of a cluster: of `torchtally local`, or collected from pods."""

import re
from collections.abc import Iterator
from pathlib import Path

from torchtally.errors import Refused
from torchtally.proof import statement

_CRI = re.compile(r"\S+ (?:stdout|stderr) [FP] ")
_POD = re.compile(r"\[(?:pod/)?([a-z0-9][a-z0-9.-]*)(?:/[a-z0-9-]+)?\] ")  # by `torchtally local` and kubectl


def is_path(name: str) -> bool:
    """Whether a command's argument names logs: a job's name has neither / nor a dot."""
    return "/" in name or "." in name


def found(path: Path) -> list[Path]:
    """The files with logs. Raises Refused."""
    try:
        if not path.is_dir():
            if statement.is_one(path):
                raise Refused(f"{path} is a proof and no log, which only `torchtally verify` takes")
            return [path]
        files = sorted(file for file in path.rglob("*") if file.is_file() and not statement.is_one(file))
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if not files:
        raise Refused(f"the folder {path} holds no file: name the folder with the pods' logs")
    return files


def parted(file: Path, line: str) -> tuple[str, str]:
    """The pod and the text of a line of a log's file."""
    if tag := _CRI.match(line):
        line = line[tag.end() :]
    if named := _POD.match(line):
        return named[1], line[named.end() :]
    return file.stem, line


class Growing:
    """A file that is being written: the lines that are complete so far, each once."""

    def __init__(self, file: Path) -> None:
        self.file, self._at, self._rest = file, 0, b""

    def lines(self) -> Iterator[str]:
        try:
            with self.file.open("rb") as stream:
                if stream.seek(0, 2) < self._at:  # written again
                    self._at, self._rest = 0, b""
                stream.seek(self._at)
                *whole, self._rest = (self._rest + (new := stream.read())).split(b"\n")
                self._at += len(new)
        except OSError:  # gone for now
            return
        for line in whole:
            yield line.decode(errors="replace")
