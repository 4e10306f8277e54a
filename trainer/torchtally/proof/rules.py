"""What fields of a line may be. msgspec checks it, and a sentence names the first field that is wrong.

A format is a Struct. The Meta of a field has its bounds, and its description says what is allowed. `fitting` is for
what msgspec has no bounds for. What depends on other fields, a format tells by itself.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from torchtally.proof import digest as digests
from torchtally.proof.contract import CONTRACTS, OF_DRAWS
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.modular import P
from torchtally.proof.order import DRAWN, PLAIN, parse
from torchtally.proof.shard_sizes import ShardSizes, stated_runs

Found = TypeVar("Found")
if TYPE_CHECKING:
    Maybe: TypeAlias = Found | None
else:

    class Maybe:
        """A field that a line may lack, which is None then. No line has null in it."""

        def __class_getitem__(cls, hint: Any) -> Any:
            return hint


HUGE = (1 << 63) - 1
MANY = 1_000_000  # epochs or ranks, far above any real run: a garbled number must not fill the memory

Path = tuple[str, ...]  # to a field of a line: the names of the objects that it is within, and its own
Wrong = tuple[Path, str]  # a field, and what is allowed there
Format = TypeVar("Format", bound=Struct)


def fitting(fits: Callable[[Any], object], allowed: str) -> Meta:
    """The values that fit; `allowed` says which these are."""
    return Meta(description=allowed, extra={"fits": fits})


def integer(low: int, high: int) -> Meta:
    """The integers from `low` to `high`."""
    allowed = f"an integer from {low} to {high}"
    if high <= HUGE:
        return Meta(ge=low, le=high, description=allowed)
    return Meta(ge=low, description=allowed, extra={"fits": lambda value: low <= value <= high})


def is_text(value: str) -> bool:
    """Whether it is text that a terminal can show."""
    return bool(value.strip()) and value.isprintable()


text = Meta(min_length=1, description="printable text", extra={"fits": is_text})
Text = Annotated[str, text]
_ALL_TEXT = {"fits": lambda each: all(map(is_text, each))}
Texts = Annotated[tuple[str, ...], Meta(min_length=1, description="a list of printable texts", extra=_ALL_TEXT)]
Order = Annotated[
    str, fitting(parse, f"{' or '.join(PLAIN)} or locality-1 with its window, lanes and fingerprint of sizes")
]
Digest = Annotated[str, fitting(digests.is_one, f"{digests.WORDS} numbers below 2**61 - 1 in base64 for URLs")]
Began = Annotated[int, integer(0, 253_402_300_799_999)]  # milliseconds from 1970 to the end of 9999; 0 if not known
Samples = Annotated[int, integer(1, P - 1)]  # of a dataset
Seed = Annotated[int, integer(0, (1 << 64) - 1)]
Count = Annotated[int, integer(0, HUGE)]
Plan = Annotated[
    Mapping[str, Annotated[int, Meta(ge=0, le=MANY)]],
    fitting(
        lambda plan: all(map(is_text, plan)),
        f"an object that gives each phase, named by printable text, its number of epochs, 0 to {MANY}",
    ),
]


def contract(line: Any) -> Iterator[str]:
    """What is allowed, where the contract is none of the line's order."""
    if line.contract not in (known := OF_DRAWS if line.order == DRAWN else CONTRACTS):
        yield " or ".join(known)


def sizes(line: Any) -> Iterator[str]:
    """What is allowed, where the sizes of shard files are not those that the order has the fingerprint of."""
    stated = parse(line.order)
    if not isinstance(stated, LocalOrder) or line.sizes != stated.sizes or line.sizes.total != line.n:
        yield f"the sizes that the order names, {line.n} samples together"


class Field(NamedTuple):
    """A field of a format."""

    name: str
    type: Any
    required: bool
    allowed: str
    fits: Callable[[Any], object] | None  # what msgspec does not check
    marks: tuple[Any, ...]


@cache
def fields(format: type[Struct]) -> tuple[Field, ...]:
    """The fields of a format."""
    found = []
    for each in msgspec.structs.fields(format):
        marks = get_args(each.type)[1:] if get_origin(each.type) is Annotated else ()
        meta = next((mark for mark in marks if isinstance(mark, Meta)), Meta())
        fits = (meta.extra or {}).get("fits")
        found.append(Field(each.name, each.type, each.required, meta.description or "", fits, marks))
    return tuple(found)


def misfits(line: Struct, own: Iterable[Field] | None = None) -> Iterator[Wrong]:
    """Those of these fields, by default of all, whose value does not fit, though it has the type."""
    for field in fields(type(line)) if own is None else own:
        if field.fits and (value := getattr(line, field.name)) is not None and not field.fits(value):
            yield (field.name,), field.allowed


def made(
    format: type[Format],
    values: Mapping[str, Any],
    wrong: Callable[[Format], Iterable[Wrong]],
    within: str = "",
) -> Format:
    """The object with these values, of which `wrong` tells what msgspec does not check.

    Raises ValueError that names the field, its value and what is allowed.
    """
    try:
        found = msgspec.convert(values, format, dec_hook=decoded)
        fault = next(iter(wrong(found)), None)
    except msgspec.ValidationError:
        fault = _first(format, values, wrong)
    if fault:
        raise ValueError(sentence(values, *fault, within))
    return found


def problem(format: type[Struct], values: Mapping[str, Any]) -> str | None:
    """Why no object of the format can have these values, whatever its other fields are; None if it can."""
    known = [field for field in fields(format) if field.name in values]
    fault = next(_faults(known, values), None)
    return fault and sentence(values, *fault)


def decoded(_: type, value: Any) -> ShardSizes:
    """The hook of msgspec: shard sizes are the only type that it does not know."""
    try:
        return ShardSizes.of_runs(value)
    except ValueError as error:
        raise ValueError(f"the sizes of shard files: {error}") from None


def printed(line: Struct) -> dict[str, Any]:
    """All fields, as JSON has them."""
    return dict(json.loads(msgspec.json.encode(line, enc_hook=stated_runs)))


def sentence(values: Mapping[str, Any], path: Path, allowed: str, within: str = "") -> str:
    """What is wrong with a field: it is missing, or has another value than is allowed."""
    shown, *_, name = f'"{within}{".".join(path)}"', *path
    for each in path[:-1]:
        values = values[each]
    return f"{shown} is {show(values[name])}, allowed is {allowed}" if name in values else f"{shown} is missing"


def _first(format: type[Format], values: Mapping[str, Any], wrong: Callable[[Format], Iterable[Wrong]]) -> Wrong:
    """The first field that is missing or of another type."""
    path, allowed = next(_faults(fields(format), values))
    others = {each.name: values[each.name] for each in fields(format) if each.name in values and (each.name,) != path}
    with suppress(TypeError, AttributeError, msgspec.ValidationError):  # other fields bound it further, and NaN is out
        known = {each.name: _value(each, others[each.name]) for each in fields(format) if each.name in others}
        allowed = dict(wrong(format(**known, **{path[0]: math.nan}))).get(path, allowed)
    return path, allowed


def _faults(known: Iterable[Field], values: Mapping[str, Any]) -> Iterator[Wrong]:
    for field in known:
        value = values.get(field.name)
        if field.name not in values:
            if field.required:
                yield (field.name,), ""
        elif isinstance(value, dict) and (inner := _of_objects(field)):
            for name, each in value.items():
                faults = _faults(fields(inner), each) if isinstance(each, dict) else [((), "an object")]
                yield from (((field.name, name, *path), allowed) for path, allowed in faults)
        else:
            try:
                found = _value(field, value)
            except msgspec.ValidationError as error:
                yield (field.name,), str(error.__cause__ or field.allowed)
            else:
                if field.fits and not field.fits(found):
                    yield (field.name,), field.allowed


def _of_objects(field: Field) -> type[Struct] | None:
    """The format of the objects that the object in a field has by their names."""
    inner = get_args(get_args(field.type)[0] if field.marks else field.type)[-1:]
    return inner[0] if inner and isinstance(inner[0], type) and issubclass(inner[0], Struct) else None


def _value(field: Field, value: Any) -> Any:
    return msgspec.convert(value, field.type, dec_hook=decoded)


def show(value: object) -> str:
    """A value for a sentence."""
    return short(json.dumps(value, default=repr), 60)


def short(text: str, length: int) -> str:
    """At most `length` characters, and an ellipsis where that cuts it off."""
    return text if len(text) <= length else text[:length] + "..."
