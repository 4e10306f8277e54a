"""The values of a line, each checked as it is taken."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from torchtally.proof import digest
from torchtally.proof.digest import Digest

HUGE = 1 << 63
MANY = 1_000_000  # epochs or ranks, far above any real run: a garbled number must not fill the memory


class Fields:
    """An object out of a line, or one in it (`within`: `phases.train.`). ValueError says what cannot be."""

    def __init__(self, values: Mapping[str, Any], within: str = "") -> None:
        self.values, self._within = values, within

    def bad(self, name: str, allowed: str) -> ValueError:
        shown = f'"{self._within}{name}"'
        if name not in self.values:
            return ValueError(f"{shown} is missing")
        return ValueError(f"{shown} is {show(self.values[name])}, allowed is {allowed}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if isinstance(value, str) and value.strip() and value.isprintable():  # printable: it goes to a terminal
            return value
        raise self.bad(name, "printable text")

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        if self.values.get(name) in allowed:
            return self.text(name)
        raise self.bad(name, " or ".join(allowed))

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.values.get(name)
        if type(value) is int and low <= value <= high:
            return value
        raise self.bad(name, f"an integer from {low} to {high}")

    def plan(self) -> dict[str, int]:
        plan = self.values.get("plan")
        if not isinstance(plan, dict) or not all(type(e) is int and 0 <= e <= MANY for e in plan.values()):
            raise self.bad("plan", f"an object that gives each phase its number of epochs, 0 to {MANY}")
        if not all(phase.strip() and phase.isprintable() for phase in plan):
            raise self.bad("plan", "an object whose names are printable text")
        return plan

    def seed(self) -> int:
        return self.integer("seed", 0, (1 << 64) - 1)

    def samples(self) -> int:
        return self.integer("n", 1, digest.P - 1)

    def contract(self) -> str:
        return self.choice("contract", ("exact", "padded", "drop_last"))

    def order(self) -> str:
        return self.choice("order", ("feistel-1", "sequential"))

    def digest(self) -> Digest:
        return digest.unpacked(self.packed())

    def packed(self) -> bytes:
        """The digest, as digest.packed has it."""
        text = self.values.get("digest")
        try:
            if not isinstance(text, str):
                raise ValueError
            packed = digest.packed(text)
            if base64.urlsafe_b64encode(packed).rstrip(b"=") != text.encode():  # the bits that base64 has to spare
                raise ValueError
        except ValueError:
            raise self.bad("digest", f"{digest.WORDS} numbers below 2**61 - 1 in base64 for URLs") from None
        return packed


def show(value: object) -> str:
    return short(json.dumps(value), 60)


def short(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."
