"""A YAML document as a tree of nodes, each with its place in the text. JSON is YAML, too."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from torchtally.errors import Refused

_LF = "\n"
_DIRECTIVE = re.compile(r"^%(YAML|TAG).*", re.MULTILINE)  # which would stand behind the ConfigMap


@dataclass(eq=False)
class Node:
    """A scalar, a mapping, or a sequence."""

    start: int  # of its first character
    column: int
    end: int = 0  # behind its last character
    flow: bool = True  # in one piece, as a scalar, [a, b], and {a: b}
    scalar: str | None = None
    null: bool = False  # nothing, `null`, or `~`
    pairs: list[tuple["Node", "Node"]] = field(default_factory=list)
    items: list["Node"] = field(default_factory=list)
    mapping: bool = False
    target: "Node | None" = None  # what an alias stands for
    anchor: bool = False  # whether aliases can stand for it

    @property
    def children(self) -> list["Node"]:
        """The items of a sequence, with what an alias stands for in its place."""
        return [each.target or each for each in self.items]

    def get(self, *path: str) -> "Node | None":
        """What stands under these keys, of a mapping that is merged in (`<<`) as well. None: nothing, or null."""
        found: Node | None = self
        for key in path:
            found = found._own(key) if found else None
        return None if found is None or found.null else found

    def written(self, key: str) -> "Node | None":
        """What stands under a key of its own: an alias, not what it stands for."""
        return next((value for name, value in self.pairs if name.scalar == key), None)

    def twice(self) -> str | None:
        """A key that a mapping in it has twice."""
        names = [name.scalar for name, _ in self.pairs if name.scalar != "<<"]
        own = next((name for name in names if name and names.count(name) > 1), None)
        below = (value.twice() for value in (*self.items, *(value for _, value in self.pairs)))
        return own or next(filter(None, below), None)

    def text(self, *path: str) -> str:
        """The scalar under these keys, or an empty text."""
        found = self.get(*path)
        return found.scalar or "" if found else ""

    def _own(self, key: str) -> "Node | None":
        merged = []
        for name, value in self.pairs:
            value = value.target or value
            if name.scalar == key:
                return value
            if name.scalar == "<<":
                merged += value.children or [value]
        return next((found for each in merged if (found := each._own(key))), None)


def read(text: str, line: int) -> Node | None:
    """The document in a text, None if it is empty. `line` counts those above it. Raises Refused."""
    if directive := _DIRECTIVE.search(text):
        raise Refused(f"line {line + text.count(_LF, 0, directive.start()) + 1}: remove {directive[0]}")
    try:
        events = iter(list(yaml.parse(text, yaml.SafeLoader)))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                root = _node(text, next(events), events, {})
                return None if root.null else root
        return None
    except yaml.reader.ReaderError as error:
        raise Refused(f"line {line + text.count(_LF, 0, error.position) + 1}: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {line + mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if mark and "{{" in text.splitlines()[min(mark.line, text.count(_LF))]:
            raise Refused(f"{place}a Helm template: give what `helm template` prints") from None
        raise Refused(f"{place}not YAML: {error.problem}") from None


def _node(text: str, event: Any, events: Iterator[Any], anchors: dict[str | None, Node]) -> Node:
    node = Node(event.start_mark.index, event.start_mark.column, event.end_mark.index)
    if isinstance(event, yaml.AliasEvent):
        node.target = anchors.get(event.anchor)
        if node.target is None:
            raise Refused(f"not YAML: the anchor {event.anchor} of an alias is not in its document")
        return node
    if event.anchor:
        anchors[event.anchor], node.anchor = node, True
    if isinstance(event, yaml.ScalarEvent):
        node.scalar = event.value
        node.null = event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
        return node
    node.flow, node.mapping = bool(event.flow_style), isinstance(event, yaml.MappingStartEvent)
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        child = _node(text, event, events, anchors)
        if node.mapping:
            node.pairs.append((child, _node(text, next(events), events, anchors)))
        else:
            node.items.append(child)
    if not node.flow:  # an anchor, or a tag, stands before it
        dash = text.rfind("-", 0, node.items[0].start) if node.items else 0
        node.column = node.pairs[0][0].column if node.pairs else dash - text.rfind(_LF, 0, dash) - 1
    last = node.pairs[-1][1] if node.pairs else node.items[-1] if node.items else None
    end: Any = event.end_mark
    node.end = end.index if node.flow or last is None else last.end
    return node
