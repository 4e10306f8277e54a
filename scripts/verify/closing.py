"""The last line of a run, with every value of it checked."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torchtally.proof.digest import Digest
from torchtally.proof.run_summary import RESUMED, World

from .fields import HUGE, MANY, Fields
from .words import differing

_MODEL = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Whole:
    """What all ranks together consumed in all epochs of a phase."""

    n: int
    contract: str
    order: str
    data: str
    consumed: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Closing:
    """What the final weights have seen, over all attempts."""

    run: str
    attempt: int
    pod: str
    task: str
    plan: dict[str, int]
    seed: int
    worlds: tuple[World, ...]
    phases: dict[str, Whole]
    model: str | None  # its hash
    discarded: int

    def differs(self, other: "Closing") -> Iterator[str]:
        """What the two say of the same run and cannot both be right; who says it, and when, is no matter."""
        for name in ("task", "plan", "seed", "worlds", "model", "discarded"):
            if (one := getattr(self, name)) != (another := getattr(other, name)):
                yield f"{name} {json.dumps(one)} and {json.dumps(another)}"
        for phase, own in self.phases.items():
            if phase in other.phases:  # else their plans differ
                yield from _differences(phase, own, other.phases[phase])


def _differences(phase: str, one: Whole, other: Whole) -> Iterator[str]:
    for name in (field.name for field in fields(one)):
        if name == "digest" and one.digest != other.digest:
            yield f"digest of {phase} in {differing(one.digest, other.digest)}"
        elif getattr(one, name) != getattr(other, name):
            yield f"{name} of {phase} {getattr(one, name)} and {getattr(other, name)}"


def is_closing(values: dict[str, Any]) -> bool:
    """A task may have a phase named `all`, too: its lines have an epoch and a rank."""
    return values.get("phase") == "all" and not values.keys() & {"epoch", "rank"}


def parse(values: dict[str, Any]) -> Closing:
    """What the line states; ValueError says which field cannot be."""
    line = Fields(values)
    plan = line.plan()
    phases = _phases(line, [phase for phase, epochs in plan.items() if epochs])
    return Closing(
        run=line.text("run"),
        attempt=line.integer("attempt", 0, HUGE),
        pod=line.text("pod"),
        task=line.text("task"),
        plan=plan,
        seed=line.seed(),
        worlds=_worlds(line, max(plan.values(), default=0), phases[RESUMED].n if RESUMED in phases else 1),
        phases=phases,
        model=_model(line),
        discarded=line.integer("discarded", 0, HUGE),
    )


def _phases(line: Fields, planned: list[str]) -> dict[str, Whole]:
    stated = line.values.get("phases")
    if not isinstance(stated, dict) or stated.keys() != {*planned} or not planned:
        raise line.bad("phases", "an object that has the phases of the plan")
    phases = {}
    for name in planned:
        if not isinstance(stated[name], dict):
            raise Fields(stated, "phases.").bad(name, "an object")
        own = Fields(stated[name], f"phases.{name}.")
        phases[name] = Whole(
            n=own.samples(),
            contract=own.contract(),
            order=own.order(),
            data=own.text("data"),
            consumed=own.integer("consumed", 0, HUGE * MANY),
            digest=own.digest(),
        )
    return phases


def _worlds(line: Fields, epochs: int, n: int) -> tuple[World, ...]:
    stated = line.values.get("worlds")
    if isinstance(stated, list) and all(_is_world(each, epochs, n) for each in stated):
        worlds = tuple((epoch, position, ranks) for epoch, position, ranks in stated)
        places = [(epoch, position) for epoch, position, _ in worlds]
        if places[:1] == [(1, 0)] and places == sorted(set(places)):
            return worlds
    raise line.bad(
        "worlds",
        f"a list of [epoch, position, ranks], the first at epoch 1 and position 0, each later than the one before it, "
        f"up to epoch {epochs} and position {n - 1}, with 1 to {MANY} ranks",
    )


def _is_world(value: Any, epochs: int, n: int) -> bool:
    if not isinstance(value, list) or [type(each) for each in value] != [int] * 3:
        return False
    epoch, position, ranks = value
    return bool(1 <= epoch <= epochs and 0 <= position < n and 1 <= ranks <= MANY)


def _model(line: Fields) -> str | None:
    value = line.values.get("model")
    if "model" in line.values and (value is None or (isinstance(value, str) and _MODEL.fullmatch(value))):
        return value
    raise line.bad("model", 'null, or "sha256:" and 64 hexadecimal digits')
