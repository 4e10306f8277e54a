"""A stream of documents, and edits of its text: what is not changed stays as it is, to the byte."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from .nodes import Node, read

_BEGIN = re.compile(r"^---(?=\s|$)", re.MULTILINE)  # only a document can begin so, even below a block of text

_PLAIN = re.compile(r"[\w./:-]*\w")


class Document:
    """One document: its text, and edits that are made all at once by `text`."""

    def __init__(self, text: str, line: int = 0) -> None:
        self._text = text
        self._edits: list[tuple[int, int, int, str]] = []  # start, depth, end, and what takes its place
        self.root = read(text, line)

    @property
    def text(self) -> str:
        """With all edits."""
        text = self._text
        # From the end; of lines that are added in one place, those of inner nodes stand above those of outer ones.
        for start, _, end, new in sorted(self._edits, key=lambda edit: (-edit[0], edit[1])):
            text = text[:start] + new + text[end:]
        return text

    def append(self, sequence: Node, value: Any) -> None:
        """Add an item to a sequence."""
        if not sequence.flow:
            self._add_lines(sequence.end, 2 * sequence.column + 1, _block([value], sequence.column, 0))
        elif sequence.items:
            self._insert(sequence.items[-1].end, f", {json.dumps(value)}")
        else:
            self._insert(sequence.end - 1, json.dumps(value))

    def set(self, mapping: Node, key: str, value: Any, offset: int) -> None:
        """Add a key, which the mapping lacks or has without a value. Lists in it are indented by `offset`."""
        self.remove(mapping, key)
        rest = [pair for pair in mapping.pairs if pair[0].scalar != key]
        if not mapping.flow and rest:
            self._add_lines(rest[-1][1].end, 2 * mapping.column, _block({key: value}, mapping.column, offset))
            return
        text = json.dumps({key: value})[1:-1]
        self._insert(rest[-1][1].end if rest else mapping.end - 1, f", {text}" if rest else text)

    def remove(self, collection: Node, part: str | Node) -> bool:
        """Remove a key of a mapping, or an item of a sequence. Returns whether it was there."""
        spans = [(name.start, value.end) for name, value in collection.pairs]
        spans += [(item.start, item.end) for item in collection.items]
        known: list[str | Node | None] = [*(name.scalar for name, _ in collection.pairs), *collection.items]
        if part not in known:
            return False
        at = known.index(part)
        if not collection.flow and self._before(spans[at][0]) == ("-" if collection.items else ""):
            self._remove_lines(*spans[at])
        elif at + 1 < len(spans):
            self._edit(spans[at][0], spans[at + 1][0], "")
        else:
            self._edit(spans[at - 1][1] if at else spans[at][0], spans[at][1], "" if collection.flow else "{}")
        return True

    def replace(self, scalar: Node, value: str) -> None:
        """Give a scalar another text. It stays without quotes if it has none and needs none."""
        had_none = self._text[scalar.start : scalar.end] == scalar.scalar
        plain = had_none and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value
        self._edit(scalar.start, scalar.end, value if plain else json.dumps(value))

    def _insert(self, at: int, new: str) -> None:
        self._edit(at, at, new)

    def _edit(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, -1, end, new))

    def _add_lines(self, behind: int, depth: int, lines: str) -> None:
        at = self._end_of_line(behind)
        self._edits.append((at, depth, at, lines if self._text[at - 1] == "\n" else "\n" + lines.rstrip("\n")))

    def _remove_lines(self, start: int, end: int) -> None:
        self._edit(self._text.rfind("\n", 0, start) + 1, self._end_of_line(end), "")

    def _before(self, at: int) -> str:
        """What is before a place in its line, without space: the dash of an item, also before its first key."""
        return self._text[self._text.rfind("\n", 0, at) + 1 : at].strip()

    def _end_of_line(self, at: int) -> int:
        """Behind the line of what ends there: a block of text ends behind its last line already."""
        found = self._text.find("\n", max(at - 1, 0))
        return len(self._text) if found < 0 else found + 1


def parted(text: str) -> Iterator[tuple[str, int]]:
    """The texts of the documents in a stream, and the number of lines above each."""
    starts = [0, *(found.start() for found in _BEGIN.finditer(text) if found.start())]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end], text.count("\n", 0, start)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stand as they are."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def dumped(value: Any) -> str:
    """As YAML."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000))


def _block(value: Any, column: int, offset: int) -> str:
    """As lines of YAML that begin in this column."""
    lines: list[str] = []
    for line in dumped(value).splitlines(keepends=True):
        lines.append(" " * (column + offset * bool(lines)) + line)
    return "".join(lines)
