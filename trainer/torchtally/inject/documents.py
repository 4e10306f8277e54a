"""A stream of documents, and one edit of a document's text: what is not changed stays as it is, to the byte."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from torchtally.inject.nodes import Node, read

_BEGIN = re.compile(r"^---(?=\s|$)", re.MULTILINE)  # only a document can begin so, even below a block of text
_PLAIN = re.compile(r"[\w./:-]*\w")


class Document:
    """One document. Each edit returns its new text: its nodes have no places in that, so it is read again.

    Args:
        text: Its text.
        line: The number of lines above it.
    """

    def __init__(self, text: str, line: int = 0) -> None:
        self._text = text
        self.root = read(text, line)

    def append(self, sequence: Node, value: Any) -> str:
        """Add an item to a sequence."""
        if not sequence.flow:
            return self._with_lines(sequence.end, _block([value], sequence.column, 0))
        if sequence.items:
            return self._with(sequence.items[-1].end, f", {json.dumps(value)}")
        return self._with(sequence.end - 1, json.dumps(value))

    def set(self, mapping: Node, key: str, value: Any, offset: int) -> str:
        """Add a key that the mapping lacks. Lists in it are indented by `offset`."""
        last = mapping.pairs[-1][1].end if mapping.pairs else None
        if last is not None and not mapping.flow:
            return self._with_lines(last, _block({key: value}, mapping.column, offset))
        text = json.dumps({key: value})[1:-1]
        return self._with(mapping.end - 1, text) if last is None else self._with(last, f", {text}")

    def without(self, collection: Node, part: str | Node) -> str | None:
        """Remove a key of a mapping, or an item of a sequence; None if it is not there."""
        spans = [(name.start, value.end) for name, value in collection.pairs]
        spans += [(item.start, item.end) for item in collection.items]
        known: list[str | Node | None] = [*(name.scalar for name, _ in collection.pairs), *collection.items]
        if part not in known:
            return None
        at = known.index(part)
        start, end = spans[at]
        if not collection.flow and self._before(start) == ("-" if collection.items else ""):
            return self._replaced(self._text.rfind("\n", 0, start) + 1, self._end_of_line(end), "")
        if at + 1 < len(spans):
            return self._replaced(start, spans[at + 1][0], "")
        return self._replaced(spans[at - 1][1] if at else start, end, "" if collection.flow else "{}")

    def replaced(self, scalar: Node, value: str) -> str:
        """Give a scalar, or an alias of one, another text. It stays without quotes if it has none and needs none."""
        old = self._text[scalar.start : scalar.end]
        plain = old == scalar.scalar and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value
        end = "\n" if old.endswith("\n") else ""  # of a block of text
        return self._replaced(scalar.start, scalar.end, (value if plain else json.dumps(value)) + end)

    def _with(self, at: int, new: str) -> str:
        return self._replaced(at, at, new)

    def _replaced(self, start: int, end: int, new: str) -> str:
        return self._text[:start] + new + self._text[end:]

    def _with_lines(self, behind: int, lines: str) -> str:
        at = self._end_of_line(behind)
        return self._with(at, lines if self._text[at - 1] == "\n" else "\n" + lines.rstrip("\n"))

    def _before(self, at: int) -> str:
        """What is before a place in its line, without space: the dash of an item, also before its first key."""
        return self._text[self._text.rfind("\n", 0, at) + 1 : at].strip()

    def _end_of_line(self, at: int) -> int:
        """Behind the line of what ends there: a block of text ends behind its last line already."""
        found = self._text.find("\n", max(at - 1, 0))
        return len(self._text) if found < 0 else found + 1


def parted(text: str) -> Iterator[tuple[str, int]]:
    """The texts of the documents in a stream, and the number of lines above each."""
    objects = _json(text) if text.lstrip().startswith("{") else []
    if len(objects) > 1 or (objects and "\t" in text):  # which YAML does not take
        text = "---\n".join(json.dumps(each, indent=4, ensure_ascii=False) + "\n" for each in objects)
    starts = [0, *(found.start() for found in _BEGIN.finditer(text) if found.start())]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end], text.count("\n", 0, start)


def _json(text: str) -> list[Any]:
    """The objects in a text, one after the other; none if it is not JSON."""
    objects, rest = [], text.strip()
    try:
        while rest:
            found, end = json.JSONDecoder().raw_decode(rest)
            objects.append(found)
            rest = rest[end:].lstrip()
    except ValueError:
        return []
    return objects


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
