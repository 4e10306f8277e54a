#!/usr/bin/env python
"""Writes the parts of docs/ that have a source in the code: options, fields, and the Python API; `make docs` runs it.

A part stands between `<!-- tools/reference.py: NAME -->` and `<!-- end -->` in its page.
"""

import contextlib
import importlib
import inspect
import io
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torchtally import cli, events
from torchtally.proof import statement
from torchtally.tasks import OPTIONS

DOCS = Path(__file__).parents[1] / "docs"
_PART = re.compile(r"(<!-- tools/reference\.py: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
# What users import, by the heading of its section. After a colon: the members that users need.
API = {
    "Account": [
        "torchtally.Account:loader,optimizer,weigh,epochs,epoch,stop,skip,commit,holds,replaced,log,checkpoints,resume_from,asked_to_stop,write_proof,"
        "state_dict,load_state_dict,sampler,batches,completed,steps,plan,rank,world"
    ],
    "Plans and data": [
        "torchtally.Steps",
        "torchtally.Tokens",
        "torchtally.Every",
        "torchtally.Locality",
        "torchtally.Mixture:place,row",
        "torchtally.Packed:pieces",
        "torchtally.accounting.data.packed.cu_seqlens",
        "torchtally.Batch",
        "torchtally.each_row",
        "torchtally.accounting.order.sampler.Sampler:batches,set_epoch",
    ],
    "Errors": ["torchtally.Refused", "torchtally.Unproven", "torchtally.exit_codes"],
    "Datasets in shard files": [
        "torchtally.streams.shards.Shards",
        "torchtally.streams.mds.MDS",
        "torchtally.streams.parquet.ParquetFiles",
        "torchtally.streams.webdataset.TarFiles",
        "torchtally.streams.tokens.TokenFiles",
    ],
    "Checkpoints": [
        "torchtally.checkpoints.checkpoints.Checkpoints:resume",
        "torchtally.checkpoints.of_rank_0.CheckpointsOfRank0",
    ],
    "Adapters": [
        "torchtally.integrations.lightning.AccountCallback",
        "torchtally.integrations.transformers.AccountMixin",
        "torchtally.integrations.accelerate.marked",
        "torchtally.integrations.keras.AccountCallback",
        "torchtally.integrations.keras.BackupAndRestore",
        "torchtally.integrations.keras.Batches",
    ],
    "Evaluation": [
        "torchtally.evaluate",
        "torchtally.accounting.evaluation.Evaluation:mean",
        "torchtally.gather_predictions",
        "torchtally.accounting.evaluation.compute",
    ],
}


def help_of(*command: str) -> list[tuple[str, str, str]]:
    """Each option that `torchtally COMMAND --help` lists: with its value, its meaning, and its default."""
    printed = io.StringIO()
    one_line_each = patch.dict(os.environ, {"COLUMNS": "999"})
    with one_line_each, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    options = printed.getvalue().partition("\noptions:\n")[2].partition("\n\n")[0]
    found = []
    for option, meaning in re.findall(r"^  (-.+?)(?:  +|\n +)(.+)$", options, re.MULTILINE):
        text, _, default = meaning.partition(" (default: ")
        if not option.startswith("-h,"):
            found.append((re.sub(r"\{(.+)\}", lambda names: names[1].replace(",", "|"), option), text, default[:-1]))
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(list(head)), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def options(command: str) -> str:
    """The options of a command, or of each of its subcommands that are named after a colon."""
    command, _, subcommands = command.partition(":")
    shared: dict[tuple[str, str, str], list[str]] = {}
    for each in subcommands.split(",") if subcommands else [""]:
        for found in help_of(*command.split(), *each.split()):
            shared.setdefault(found, []).append(each)
    several = "," in subcommands
    of_all = len(subcommands.split(","))
    rows = []
    for (option, text, default), names in shared.items():
        meaning = f"{text} (default: {default})" if default else text
        of = ["all" if len(names) == of_all else ", ".join(f"`{name}`" for name in names)] if several else []
        rows.append([f"`{option}`", *of, meaning])
    return table(["option", *(["of"] if several else []), "meaning"], rows)


def training() -> str:
    """The options of all tasks, each with its default and the tasks that have it."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for task in OPTIONS:
        for option, text, default in help_of("run", task):
            found.setdefault(option, {})[task] = (text, default)
    rows = []
    for option, of_tasks in found.items():
        texts, defaults = ([each[at] for each in of_tasks.values()] for at in (0, 1))
        usual = max(dict.fromkeys(defaults), key=defaults.count)
        others = [f"{task} {default}" for task, (_, default) in of_tasks.items() if default != usual]
        lacking = [task for task in OPTIONS if task not in of_tasks]
        which = "all" if not lacking else f"all but {', '.join(lacking)}"
        which = which if len(lacking) <= len(OPTIONS) / 2 else ", ".join(of_tasks)
        meaning = max(dict.fromkeys(texts), key=texts.count)
        rows.append([f"`{option}`", meaning, "; ".join([usual or "–", *others]), which])
    return table(["option", "meaning", "default", "tasks"], rows)


def kinds() -> str:
    """The fields of all events, and each kind with its fields."""
    schema = events.schema()
    parts = schema["$defs"]

    def fields(kind: str) -> list[list[str]]:
        rows = []
        for name, field in parts[kind]["properties"].items():
            types = [each.get("type", "integer") for each in field.get("anyOf", [field])]
            rows.append([f"`{name}`", " or ".join(types), field.get("description", "")])
        return rows

    common = [*fields("Stamp"), ["`event`", "string", "kind of the event"], *fields("Source")]
    rows = []
    for kind in (each["$ref"].rpartition("/")[2] for each in schema["oneOf"]):
        _, *own = fields(kind)  # without `event`
        rows.append([f"**{parts[kind]['properties']['event']['enum'][0]}**", "", parts[kind]["description"]])
        rows += own
    shown = ["## Fields of all events\n\n", table(["field", "type", "meaning"], common), "\n## Kinds\n\n"]
    return "".join([*shown, table(["event, field", "type", "meaning"], rows)])


def predicate() -> str:
    """The fields of what a statement says."""
    fields = statement.schema()["$defs"]["Predicate"]["properties"]
    return table(["field", "meaning"], [[f"`{name}`", field["description"]] for name, field in fields.items()])


def described(docstring: str, indent: str = "") -> str:
    """A docstring in Google's style as Markdown: paragraphs, and lists of its arguments and its attributes."""
    headings = r"\n(Args|Attributes|Returns|Yields|Raises|Examples?):\n"
    text, *sections = re.split(headings, "\n" + inspect.cleandoc(docstring))
    parts = [paragraphs(text)]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        body = inspect.cleandoc("\n" + body)
        if heading == "Raises":  # errors are what the page of exit codes describes
            continue
        if heading == "Attributes":
            parts.append("Attributes:")
        if heading in ("Args", "Attributes"):
            entries = re.findall(r"^(\S.*?): (.*(?:\n +.*)*)", body, re.MULTILINE)
            listed = [f"{indent}- `{name}`: {' '.join(what.split())}" for name, what in entries]
            parts[-1] += ("\n" if indent else "\n\n") + "\n".join(listed)
        else:
            parts.append(paragraphs(body if heading.startswith("Example") else f"{heading} {body}"))
    return (" " if indent else "\n\n").join(part for part in parts if part)


def paragraphs(text: str) -> str:
    """Each paragraph, and each item of a list, on one line, without the examples, which guides have."""
    kept = [part for part in text.strip().split("\n\n") if ">>>" not in part]
    return "\n\n".join("\n".join(" ".join(line.split()) for line in re.split(r"\n(?=- )", part)) for part in kept)


def signature(name: str, found: Any) -> str:
    """How it is called, without types."""
    parameters: list[str] = []
    for each in inspect.signature(found).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not any(known.startswith("*") for known in parameters):
            parameters.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        plain = each.default is None or isinstance(each.default, bool | int | float | str | tuple)
        default = "" if each.default is each.empty else f"={each.default!r}" if plain else "=…"
        parameters.append(f"{stars}{each.name}{default}")
    return f"{name}({', '.join(parameters)})"


def member(kind: type, name: str) -> str:
    """A method or a property as an item of a list, with its arguments below it."""
    found = getattr(kind, name)
    called = name if isinstance(found, property) else signature(name, found)
    text = described(inspect.getdoc(found) or "", "  ")
    first, _, arguments = text.partition("\n  - ")
    return f"- **`{called}`**: {' '.join(first.split())}" + (f"\n  - {arguments}" if arguments else "")


def api() -> str:
    parts = []
    for heading, names in API.items():
        parts.append(f"## {heading}")
        for each in names:
            path, _, chosen = each.partition(":")
            module, _, name = path.rpartition(".")
            with patch.dict(os.environ, {"KERAS_BACKEND": "torch"}):
                found = getattr(importlib.import_module(module), name)
            parts += [f"### {name}"] if name != heading else []
            an_error = isinstance(found, type) and issubclass(found, Exception)
            called = f"**`{name if an_error else signature(name, found)}`**"
            parts.append(f"{called} of `{module}`: {described(inspect.getdoc(found) or '')}")
            parts += ["\n".join(member(found, name) for name in chosen.split(","))] if chosen else []
    return "\n\n".join(parts) + "\n"


def part(name: str) -> str:
    kind, _, argument = name.partition(" ")
    if kind == "options":
        return options(argument)
    return {"training": training, "events": kinds, "predicate": predicate, "api": api}[kind]()


def written(page: str) -> str:
    """The page with each of its parts as the code has it."""
    return _PART.sub(lambda match: f"{match[1]}\n{part(match[2])}\n{match[3]}", page)


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.rglob("*.md")) if _PART.search(page.read_text())]


if __name__ == "__main__":
    for name, schema in (("events", events.schema()), ("statement-v1", statement.schema())):
        (DOCS / f"reference/{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n")
    for page in pages():
        page.write_text(written(page.read_text()))
