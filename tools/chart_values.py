#!/usr/bin/env python3
"""Write what values.yaml says of the chart's values into the chart's values.schema.json and README.md.

    tools/chart_values.py [--check]

A comment that begins with `# --` describes the value below it, and `# === TITLE ===` begins a section. In the schema,
values get these descriptions and this order; in the README, the part below "## Values" has a table for each section.
With --check, the script writes nothing, and ends with 1 if a file differs.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent.parent / "charts/torchtally"
WIDTH = 120
KUBERNETES = '    "kubernetes": {"$comment": '  # tools/kubernetes_schema.py writes what follows

Schema = dict[str, Any]


@dataclass(frozen=True)
class Value:
    path: tuple[str, ...]
    section: str
    default: Any
    description: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    values = list(read((CHART / "values.yaml").read_text()))
    differ = False
    for name, written in (("values.schema.json", schema), ("README.md", readme)):
        file = CHART / name
        before = file.read_text()
        after = written(before, values)
        differ |= before != after
        if check and before != after:
            print(f"chart_values: {name} differs from values.yaml: run `make docs`", file=sys.stderr)
        elif not check:
            file.write_text(after)
    return int(check and differ)


def read(text: str) -> Iterator[Value]:
    """The described values, in the order of the file."""
    lines = text.splitlines()
    sections = [(number, found[1]) for number, line in enumerate(lines) if (found := re.match("# === (.*) ===", line))]

    def described(node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[Value]:
        for key, value in node.value:
            here = (*path, key.value)
            line = key.start_mark.line
            comment: list[str] = []
            while lines[line - 1 - len(comment)].lstrip().startswith("# "):
                comment.insert(0, lines[line - 1 - len(comment)].strip().removeprefix("# "))
            if comment and comment[0].startswith("-- "):
                section = [title for number, title in sections if number < line][-1]
                default = yaml.safe_load(yaml.serialize(value))
                yield Value(here, section, default, " ".join(comment).removeprefix("-- "))
            else:
                yield from described(value, here)

    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from described(root, ())


def schema(before: str, values: list[Value]) -> str:
    own, mark, kubernetes = before.partition(KUBERNETES)
    root = json.loads(own.rstrip().removesuffix(",") + "}}")
    for value in values:
        parent: Schema = root
        for name in value.path[:-1]:
            parent = _last(parent["properties"], name)
        part = _last(parent["properties"], value.path[-1])
        rest = {key: each for key, each in part.items() if key != "description"}
        part.clear()
        part |= {"description": value.description, **rest}
    return _laid_out(root, 0).removesuffix("\n  }\n}") + ",\n" + mark + kubernetes


def _last(properties: Schema, name: str) -> Schema:
    """A property, moved to the end: so the order becomes that of the calls."""
    found: Schema = properties.pop(name)
    properties[name] = found
    return found


def _laid_out(value: Any, indent: int, before: int = 0) -> str:
    """JSON with all of an object or a list in one line where that fits."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (indent + before + len(line) < WIDTH and indent):
        return line
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    items = value.values() if isinstance(value, dict) else value
    inner = [
        f"{' ' * (indent + 2)}{key}{_laid_out(item, indent + 2, len(key))}"
        for key, item in zip(keys, items, strict=True)
    ]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opened, ",\n".join(inner), " " * indent + closed])


def readme(before: str, values: list[Value]) -> str:
    lines = [before.partition("\n## Values\n")[0], "## Values", ""]
    lines.append("The tables are those of `values.yaml`, which `make docs` writes here.")
    for section in dict.fromkeys(value.section for value in values):
        lines += ["", f"### {section}", "", "| Value | Default | Description |", "|---|---|---|"]
        for value in values:
            if value.section == section:
                default = json.dumps(value.default, ensure_ascii=False)
                lines.append(f"| `{'.'.join(value.path)}` | `{default}` | {value.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
