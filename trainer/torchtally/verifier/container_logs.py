"""Extracts the lines that a program wrote from the formats of container runtimes and log collectors.

A container runtime cuts a line of more than 16 KiB into pieces. Docker and collectors make each line or piece a JSON
object with the text in one field: `log` in Docker's json-file and Fluent Bit, `message`, or `line` in Loki. An export
can have such an object on several lines, or rows of CSV, which doubles quotation marks.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

_PIECE = 16 << 10  # bytes
_OF_CRI = re.compile(r"\S+ (stdout|stderr) ([PF])(?::\S+)? ")
_SOURCES = 64  # of pieces in one log, held at a time
_OF_PIECE = {"log", "time", "date", "ts", "timestamp", "@timestamp", "offset", "logtag", "_p"}  # differ within a line
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_FIELD = re.compile(r'"(?:[^"]|"")*"')  # of a row of CSV
_ESCAPED = re.compile(r"[-A-Z]*\s*\{\\")  # what follows the prefix in a string of JSON
_DOUBLED = re.compile(r'[-A-Z]*\s*\{\\*""')  # and in a row of CSV
_TRIED = 16  # braces of a line that begin no object
_DECODER = json.JSONDecoder()


class Unwrapping:
    """Joins and unwraps the lines of one log in order. Yields only those that contain `wanted`."""

    def __init__(self, wanted: str, longest: int) -> None:
        self._wanted, self._longest = wanted, longest
        self._pieces: dict[str, str] = {}  # the beginning of an incomplete line, by source

    def lines(self, text: str) -> Iterator[str]:
        """Yield the lines in a line of the log."""
        if tag := _OF_CRI.match(text):
            content = text[tag.end() :]
            yield from self._joined(tag[1], content.rstrip("\r\n") if tag[2] == "P" else content, tag[2] == "P")
        elif (self._pieces or len(text) > _PIECE) and (entry := _of_docker(text)):
            yield from self._joined(*entry)
        else:
            yield from self._unwrapped(text)

    def rest(self) -> Iterator[str]:
        """Yield the lines that are still incomplete."""
        for piece in self._pieces.values():
            yield from self._unwrapped(piece)

    def _joined(self, source: str, piece: str, goes_on: bool) -> Iterator[str]:
        whole = self._pieces.pop(source, "") + piece
        if goes_on and len(whole) < self._longest:
            self._pieces[source] = whole
            if len(self._pieces) > _SOURCES:
                yield from self._unwrapped(self._pieces.pop(next(iter(self._pieces))))
        else:
            yield from self._unwrapped(whole)

    def _unwrapped(self, text: str) -> Iterator[str]:
        rest, at, tried = 0, 0, 0
        while (found := text.find(self._wanted, max(rest, at))) >= 0:
            begin = text.find("{", at)
            if not 0 <= begin < found and "\\" not in text and '""' not in text:  # in no object, and in no string
                yield text[rest:]
                return
            if not 0 <= begin < found or tried == _TRIED:
                yield from self._unquoted(text[rest:], found - rest)
                return
            try:
                value, end = _DECODER.raw_decode(text, begin)
            except (ValueError, RecursionError):
                at, tried = begin + 1, tried + 1
                continue
            at = end
            if end > found:
                inside = [each for each in _texts(value) if self._wanted in each]
                if not inside:
                    yield text[rest:]
                    return
                for each in inside:
                    for line in each.splitlines(keepends=True):
                        yield from self._unwrapped(line)
                rest = end

    def _unquoted(self, text: str, found: int) -> Iterator[str]:
        """Yield what is in the string around what was `found`, or else the text as it is."""
        after = found + len(self._wanted)
        inside = None
        if _DOUBLED.match(text, after):
            inside = _around(_FIELD, text, found)
            inside = inside and inside[1:-1].replace('""', '"')
        elif _ESCAPED.match(text, after) and (string := _around(_STRING, text, found)):
            with contextlib.suppress(ValueError):
                inside = json.loads(string, strict=False)
        if inside is None:
            yield text
            return
        for line in inside.splitlines(keepends=True):
            yield from self._unwrapped(line)


def _around(pattern: re.Pattern[str], text: str, at: int) -> str | None:
    return next((each[0] for each in pattern.finditer(text) if each.start() < at < each.end()), None)


def _of_docker(text: str) -> tuple[str, str, bool] | None:
    """Source, text, and whether the line continues, from an entry in the format of Docker's json-file.

    A collector adds the pod and the container to each entry, and its log can have those of several.
    """
    try:
        entry = json.loads(text)
        stream, log = entry["stream"], entry["log"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if not isinstance(stream, str) or not isinstance(log, str):
        return None
    source = json.dumps({name: value for name, value in entry.items() if name not in _OF_PIECE}, sort_keys=True)
    return source, log, not log.endswith("\n") and len(log.encode(errors="replace")) >= _PIECE


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
