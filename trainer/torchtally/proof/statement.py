"""The proof of a run as a document that can be archived and signed: an in-toto statement about the run's files.

It carries the run's lines as they are printed, so that a log can be made of it. docs/reference/statement-v1.md
describes the fields. A field with another meaning needs another predicate type.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct

from torchtally.proof import rules
from torchtally.proof.line import PREFIX
from torchtally.proof.rules import Maybe, Text, fitting, is_text

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://github.com/torchtally/torchtally/blob/main/docs/reference/statement-v1.md"
_ANY_VERSION = re.compile(re.escape(PREDICATE).replace("v1", r"v(\d{1,9})"))
_MANIFEST = "manifest.json"  # of a checkpoint that is a folder: it has the hashes of all files
_HEAD = 1 << 16  # bytes in which a file shows that it is a statement
_MARKS = re.compile(rb'"_type"\s*:\s*"https://in-toto\.io/|"predicateType"\s*:|"dsseEnvelope"\s*:')

Hexadecimal = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64, description="64 hexadecimal digits")]


def says(text: str) -> Meta:
    """What a field says, for the schema and the docs."""
    return Meta(description=text)


_TEXTS = fitting(lambda data: all(map(is_text, data.values())), "an object of printable texts")
_TRUE_OR_FALSE, _OBJECT, _OBJECTS = says("true or false"), says("an object"), says("a list of objects")
_LINE = {"type": "string", "pattern": r"^TORCHTALLY \{.*\}$"}  # which `parse` checks
_LINES = Meta(min_length=1, description="a list of tally lines", extra_json_schema={"items": _LINE})


class Predicate(Struct, frozen=True, kw_only=True):
    """What a statement says of its subjects."""

    run: Annotated[Text, says("the run's ID")]
    task: Annotated[Text, says("name of the task")]
    # The lines must bear it out.
    holds: Annotated[bool, _TRUE_OR_FALSE, says("`true` if the trainer reported no lost or duplicated sample")]
    data: Annotated[Mapping[str, Text], _TEXTS, says("fingerprint of the data of each phase")]
    torchtally: Annotated[Text, says("version of torchtally")]
    image: Maybe[Annotated[Text, says("image of the pods as the chart names it; absent without a chart")]] = None
    chart: Maybe[Annotated[Text, says("version of the chart; absent without one")]] = None
    checkpoint: Maybe[Annotated[Text, says("the subject that is a checkpoint of the weights, if any is")]] = None
    training: Maybe[Annotated[Mapping[str, Any], _OBJECT, says("options of a built-in task, if it is one")]] = None
    epochs: Maybe[Annotated[Sequence[Mapping[str, Any]], _OBJECTS, says("results of its epochs, if it has any")]] = None
    lines_sha256: Annotated[Hexadecimal, says("SHA-256 of the lines, each with a newline at its end")]
    lines: Annotated[Sequence[str], _LINES, says("the tally lines as they are printed; the run's last line ends them")]


class Sha256(Struct):
    sha256: Hexadecimal


class Subject(Struct):
    name: Text
    digest: Annotated[Sha256, Meta(description="an object whose sha256 is 64 hexadecimal digits")]


@dataclass(frozen=True)
class Statement:
    """A predicate, and the files that it is of: the hexadecimal digits of their SHA-256, by name."""

    subjects: Mapping[str, str]
    predicate: Predicate

    @property
    def files(self) -> dict[str, str]:
        """The subjects without the checkpoint."""
        return {name: found for name, found in self.subjects.items() if name != self.predicate.checkpoint}

    def printed(self) -> bytes:
        """As a file holds it."""
        values = {name: value for name, value in rules.printed(self.predicate).items() if value is not None}
        subjects = [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in self.subjects.items()]
        whole = {"_type": TYPE, "subject": subjects, "predicateType": PREDICATE, "predicate": values}
        return (json.dumps(whole, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The statement in a file. Raises ValueError with a sentence on the first thing that is wrong."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError("it is not text in UTF-8") from None
        values = strict(text, "it")
        if not isinstance(values, dict):
            raise ValueError("it must be an object")
        if "dsseEnvelope" in values:
            raise ValueError("it is signed: scripts/proof.sh verify checks the signature, and then the proof")
        if values.get("_type") != TYPE:
            raise ValueError(rules.sentence(values, ("_type",), TYPE))
        if (kind := values.get("predicateType")) != PREDICATE:
            if isinstance(kind, str) and (version := _ANY_VERSION.fullmatch(kind)):
                raise ValueError(
                    f"it is a proof of version {version[1]}, and this release of torchtally reads version 1"
                )
            raise ValueError(rules.sentence(values, ("predicateType",), PREDICATE))
        if not isinstance(said := values.get("predicate"), dict):
            raise ValueError(rules.sentence(values, ("predicate",), "an object"))
        found = rules.made(Predicate, said, rules.misfits, "predicate.")
        for number, line in enumerate(found.lines, 1):
            if not line.startswith(f"{PREFIX}{{") or not line.isprintable():
                raise ValueError(f"line {number} is no tally line: {rules.show(line)}")
            strict(line.removeprefix(PREFIX), f"line {number}")
        subjects = _subjects(values)
        if found.checkpoint is not None and found.checkpoint not in subjects:
            raise ValueError(rules.sentence(said, ("checkpoint",), "the name of a subject", "predicate."))
        return cls(subjects, found)


def schema() -> dict[str, Any]:
    """The JSON schema of a statement."""
    (subject, predicate), parts = msgspec.json.schema_components((Subject, Predicate))
    subjects = {"type": "array", "minItems": 1, "description": "the files that the proof is of", "items": subject}
    fields = {"_type": {"const": TYPE}, "subject": subjects, "predicateType": {"const": PREDICATE}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": PREDICATE.replace(".md", ".schema.json"),
        "title": "The proof of a run: proof.json",
        "type": "object",
        "required": [*fields, "predicate"],
        "properties": {**fields, "predicate": predicate},
        "$defs": parts,
    }


def _subjects(values: Mapping[str, Any]) -> dict[str, str]:
    listed = values.get("subject")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise ValueError(rules.sentence(values, ("subject",), "a list of at least one object"))
    found: dict[str, str] = {}
    for number, each in enumerate(listed, 1):
        subject = rules.made(Subject, each, rules.misfits, within := f"subject {number}: ")
        if subject.name in found:
            raise ValueError(rules.sentence(each, ("name",), "a name that no other subject has", within))
        found[subject.name] = subject.digest.sha256
    return found


def strict(text: str, what: str) -> Any:
    """The value of a JSON text. Raises ValueError, with `what` it is, also where parsers differ on what it means."""
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is cut off or damaged: {error.msg} at character {error.pos} of {len(text)}") from None
    except RecursionError:
        raise ValueError(f"{what} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the field {rules.show(name)} twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def is_one(path: Path) -> bool:
    """Whether a file means to be a statement, signed or not, whole or not. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return head.lstrip()[:1] == b"{" and bool(_MARKS.search(head))


def sha256_of_lines(lines: Iterable[str]) -> str:
    """The SHA-256 of the lines as a log has them."""
    hashed = hashlib.sha256()
    for line in lines:
        hashed.update(f"{line}\n".encode())
    return hashed.hexdigest()


def sha256_of(path: Path) -> tuple[Path, str]:
    """The file that stands for `path`, and its SHA-256: of a checkpoint that is a folder, its manifest.

    Raises OSError.
    """
    file = path / _MANIFEST if path.is_dir() else path
    with file.open("rb") as contents:
        return file, hashlib.file_digest(contents, "sha256").hexdigest()
