"""Rules for the values of a line, each of which a field declares beside its type.

A format is a dataclass. Each of its fields is annotated with a type and a rule, and is declared there alone:

    epoch: Annotated[int, integer(1, 9)]
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from torchtally.proof import digest as digests
from torchtally.proof.contract import CONTRACTS, OF_DRAWS
from torchtally.proof.local_order import LocalOrder
from torchtally.proof.modular import P
from torchtally.proof.order import DRAWN, PLAIN, parse
from torchtally.proof.shard_sizes import ShardSizes

HUGE = 1 << 63
MANY = 1_000_000  # epochs or ranks, far above any real run: a garbled number must not fill the memory

Rule = Callable[["Values", str], Any]  # a field's value, from the object and the field's name; raises ValueError


class Values:
    """An object of a line, or one within it (`within`: `phases.train.`). ValueError names what is wrong with it."""

    def __init__(self, values: Mapping[str, Any], within: str = "") -> None:
        self.values, self._within = values, within

    def bad(self, name: str, allowed: str) -> ValueError:
        """The error for a field whose value is not `allowed`."""
        shown = f'"{self._within}{name}"'
        if name not in self.values:
            return ValueError(f"{shown} is missing")
        return ValueError(f"{shown} is {show(self.values[name])}, allowed is {allowed}")

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer from `low` to `high`."""
        value = self.values.get(name)
        if type(value) is int and low <= value <= high:
            return value
        raise self.bad(name, f"an integer from {low} to {high}")


def fitting(fits: Callable[[Any], object], allowed: str) -> Rule:
    """A value that `fits`; `allowed` says which ones do."""

    def rule(line: Values, name: str) -> Any:
        value = line.values.get(name)
        if name in line.values and fits(value):
            return tuple(value) if isinstance(value, list) else value
        raise line.bad(name, allowed)

    return rule


def is_text(value: Any) -> bool:
    """Whether a value is text that a terminal can show."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


text = fitting(is_text, "printable text")
texts = fitting(
    lambda value: isinstance(value, list) and value and all(map(is_text, value)), "a list of printable texts"
)


def integer(low: int, high: int) -> Rule:
    """An integer from `low` to `high`."""
    return lambda line, name: line.integer(name, low, high)


def choice(allowed: tuple[str, ...]) -> Rule:
    """One of these texts."""
    return fitting(allowed.__contains__, " or ".join(allowed))


attempt = integer(0, HUGE)
began = integer(0, 253_402_300_799_999)  # milliseconds from 1970 to the end of 9999; 0 where it is not known
samples = integer(1, P - 1)  # of a dataset
seed = integer(0, (1 << 64) - 1)
world = integer(1, MANY)


def contract(line: Values, name: str) -> Any:
    """A contract of the order that the line names, if it names one."""
    of_order = line.values.get("order")
    if of_order is None:
        return choice((*CONTRACTS, *OF_DRAWS))(line, name)
    return choice(OF_DRAWS if of_order == DRAWN else CONTRACTS)(line, name)


order = fitting(
    lambda value: isinstance(value, str) and parse(value),
    f"{' or '.join(PLAIN)} or locality-1 with its window, lanes and fingerprint of sizes",
)


def shard_sizes(line: Values, name: str) -> ShardSizes:
    """The sizes of the shard files that the order's text has the fingerprint of."""
    stated, n = parse(order(line, "order")), samples(line, "n")
    try:
        found = ShardSizes.of_runs(line.values.get(name))
    except ValueError as error:
        raise line.bad(name, f"the sizes of shard files: {error}") from None
    if not isinstance(stated, LocalOrder) or found != stated.sizes or found.total != n:
        raise line.bad(name, f"the sizes that the order names, {n} samples together")
    return found


def plan(line: Values, name: str) -> dict[str, int]:
    """An object that gives each phase its number of epochs."""
    value = line.values.get(name)
    if not isinstance(value, dict) or not all(type(e) is int and 0 <= e <= MANY for e in value.values()):
        raise line.bad(name, f"an object that gives each phase its number of epochs, 0 to {MANY}")
    if not all(map(is_text, value)):
        raise line.bad(name, "an object whose names are printable text")
    return value


def packed_digest(line: Values, name: str) -> bytes:
    """A digest's text, as digest.pack makes bytes of it."""
    try:
        return digests.pack(line.values[name])
    except (KeyError, TypeError, ValueError):
        raise line.bad(name, f"{digests.WORDS} numbers below 2**61 - 1 in base64 for URLs") from None


def checked(format: type, line: Values, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The values of the fields `names` of a dataclass (default: all), for its constructor. A field may have a default.

    Raises ValueError that names the field, its value and what is allowed.
    """
    known = _rules(format)
    values = {}
    for name in known if names is None else names:
        rule, optional = known[name]
        if name in line.values or not optional:
            values[name] = rule(line, name)
    return values


@cache
def _rules(format: type) -> dict[str, tuple[Rule, bool]]:
    """For each field of a dataclass: its rule, and whether an object may lack it."""
    hints = get_type_hints(format, include_extras=True)
    return {each.name: (_annotated(hints[each.name])[0], each.default is not MISSING) for each in fields(format)}


def marked(format: type, mark: str) -> list[str]:
    """Names of the fields of a dataclass whose annotation has this mark after the rule."""
    hints = get_type_hints(format, include_extras=True)
    return [each.name for each in fields(format) if mark in _annotated(hints[each.name])[1:]]


def _annotated(hint: Any) -> tuple[Any, ...]:
    assert get_origin(hint) is Annotated, hint
    return get_args(hint)[1:]


def show(value: object) -> str:
    """A value for a sentence."""
    return short(json.dumps(value, default=repr), 60)


def short(text: str, length: int) -> str:
    """At most `length` characters, and an ellipsis where that cuts it off."""
    return text if len(text) <= length else text[:length] + "..."
